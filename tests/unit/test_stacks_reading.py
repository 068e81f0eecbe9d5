"""What is read from dumps of all sorts, and what counts as the same place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.unit import stack_texts as texts

from everstep.core.stacks.dump import Answer, Frame, Stack
from everstep.core.stacks.place import Place, Stand, place_of
from everstep.core.stacks.pyspy import Reader
from everstep.core.stacks.recorder import read_recorder
from everstep.core.stacks.roles import Places

DATA = Path(__file__).parent.parent / "data" / "stacks"


def place(text: bytes) -> Place:
    found = Places().of_rank(Reader().read(text))
    assert found is not None
    return found


def stand(*calls: tuple[str, str]) -> Stand:
    return place_of(Stack(tuple(Frame(name, file, 5) for name, file in calls))).stand


def test_real_dumps_of_a_hang_are_read() -> None:
    reader = Reader()
    ats = {
        rank: found.at
        for rank in range(8)
        if (
            found := Places().of_rank(
                reader.read((DATA / f"stopped/rank-{rank}.json").read_bytes())
            )
        )
    }
    assert ats == {
        **dict.fromkeys([0, 1, 2, 3, 6], "all_reduce (distributed_c10d.py)"),
        **dict.fromkeys([4, 7], "recv (distributed_c10d.py)"),
    }


def test_native_frames_are_no_difference() -> None:
    with_native = place((DATA / "native-6.json").read_bytes())
    assert with_native == place((DATA / "stopped/rank-6.json").read_bytes())


def test_folders_lines_classes_and_ids_are_no_difference() -> None:
    text = (DATA / "stopped/rank-6.json").read_text()
    for old, new in (
        ("/opt/venv/lib/python3.11/", "/elsewhere/lib64/python3.12/"),
        ("Trainer.run_step", "run_step"),
        ('"line": 272', '"line": 273'),
        ('"module": null,', ""),
        ('"thread_name": "MainThread"', '"thread_name": null'),
    ):
        assert old in text
        text = text.replace(old, new)
    assert place(text.encode()) == place((DATA / "stopped/rank-6.json").read_bytes())


def test_the_turns_of_a_waiting_loop_are_no_difference() -> None:
    poll = [
        ("select", "/usr/lib/python3.11/selectors.py"),
        ("poll", "multiprocessing/connection.py"),
    ]
    assert place(texts.dump([*poll, *texts.LOADER[2:]])) == place(texts.dump(texts.LOADER))
    inside = place(texts.dump([("is_ready", "user.py"), *texts.USER_LOCK]))
    assert inside.is_near(place(texts.dump(texts.USER_LOCK)))


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (texts.GRAD_SYNC, Stand.WAITING),
        (texts.IRECV, Stand.WAITING),
        (texts.LOADER, Stand.OUTSIDE),
        (texts.USER_LOCK, Stand.OUTSIDE),
        # Only the caller of Work.wait() is on the stack.
        ([("pp_recv", "train.py"), *texts.MAIN], Stand.WAITING),
        ([("_communicate", "megatron/core/p2p_communication.py")], Stand.WAITING),
        ([("synchronize", "torch/cuda/streams.py"), *texts.MAIN], Stand.WAITING),
        ([("_engine_run_backward", "torch/autograd/graph.py"), *texts.MAIN], Stand.WAITING),
        # A hook in a collective's caller is the user's; so is what goes through a pipe.
        ([("hook", "train.py"), ("all_reduce_gradients", "train.py")], Stand.OUTSIDE),
        ([("recv", "/usr/lib/python3.11/multiprocessing/connection.py")], Stand.OUTSIDE),
        ([("send", "client.py"), *texts.MAIN], Stand.OUTSIDE),
        ([("wait", "/usr/lib/python3.11/threading.py"), ("f", "user.py")], Stand.OUTSIDE),
        ([("barrier", "/usr/lib/python3.11/threading.py")], Stand.OUTSIDE),
        ([("_write_item", "torch/distributed/checkpoint/filesystem.py")], Stand.OUTSIDE),
    ],
)
def test_what_a_thread_is_at(calls: texts.Calls, expected: Stand) -> None:
    assert stand(*calls) is expected


def test_a_native_frame_tells_a_wait_that_python_does_not() -> None:
    native = Frame("c10d::Work::wait", "/lib/libtorch_cpu.so", 0)
    user = Frame("step", "train.py", 3)
    assert place_of(Stack((native, user))).stand is Stand.WAITING
    assert place_of(Stack((Frame("read", "/lib/libc.so.6", 0), user))).stand is Stand.OUTSIDE


def test_the_main_thread_is_found_without_names() -> None:
    helper = [("wait", "threading.py"), ("run", "tqdm/_monitor.py"), ("_bootstrap", "threading.py")]
    threads = [
        *texts.threads(helper, thread_name=None, os_thread_id=1001),
        *texts.threads(texts.USER_LOCK, thread_name=None, os_thread_id=None),
    ]
    assert place(json.dumps(threads).encode()).at == "acquire_token (user.py)"


def test_a_collective_in_a_backward_pass_is_found_on_autograd_s_thread() -> None:
    engine = [("_engine_run_backward", "torch/autograd/graph.py"), *texts.MAIN]
    inside = [("all_reduce", texts.C10D), ("backward", "layers.py")]
    threads = [
        *texts.threads(engine),
        *texts.threads(inside, thread_name=None, os_thread_id=1001),
    ]
    found = place(json.dumps(threads).encode())
    assert found.at == "all_reduce (distributed_c10d.py)"


def test_a_known_text_gives_the_same_stack_with_its_own_heads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, reader = (DATA / "stopped/rank-6.json").read_bytes(), Reader()
    known = reader.read(real).threads[0]
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", None)
        again = reader.read(real.replace(b'"pid": ', b'"pid": 1')).threads[0]
    assert again.stack is known.stack
    assert (again.pid, again.name) == (int(f"1{known.pid}"), "MainThread")
    reader = Reader()
    first = reader.read(texts.dump(texts.GRAD_SYNC, 1))
    second = reader.read(texts.dump(texts.GRAD_SYNC, 2))
    assert second.threads[0].stack is first.threads[0].stack
    assert (second.threads[0].pid, second.threads[0].name) == (1002, "MainThread")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 900))
def test_any_cut_of_a_dump_is_no_answer(kept: int) -> None:
    reader = Reader()
    text = texts.dump(texts.GRAD_SYNC)
    reader.read(text)
    assert reader.read(text[:kept]).answer is Answer.NO_ANSWER


@settings(max_examples=30, deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["threads", "frames", "pid", "name", "line", "entries", "pg_status"]
                ),
                inner,
            )
        ),
    )
)
def test_any_json_is_read_without_an_error(value: object) -> None:
    text = json.dumps(value).encode()
    Places().of_rank(Reader().read(text))
    read_recorder(text)


def test_real_recorders_are_read() -> None:
    first = read_recorder((DATA / "recorder-0.json").read_bytes())
    second = read_recorder((DATA / "recorder-1.json").read_bytes())
    assert first is not None
    assert second is not None
    one = {group.description: group for group in first.groups}
    other = {group.description: group for group in second.groups}
    assert (one["tp"].enqueued, one["tp"].completed, one["tp"].waits) == (7, 5, True)
    assert str(one["tp"].works[7]) == "broadcast of 1000 elements"
    # gloo counts late; what was retired is done.
    assert (other["default_pg"].completed, other["default_pg"].waits) == (5, False)


def test_a_recorder_without_entries_is_read_by_its_status() -> None:
    text = texts.recorder({"5": (41, 40, "[0, 1]")})
    found = read_recorder(text)
    assert found is not None
    assert found.groups[0].members == (0, 1)
    assert (found.groups[0].enqueued, found.groups[0].completed) == (41, 40)
