"""Dumps as py-spy and the flight recorder write them, made from short descriptions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.core.groups import Layout
from everstep.core.stacks.dump import Snapshot
from everstep.core.stacks.judge import judge
from everstep.core.stacks.pyspy import Reader
from everstep.core.stacks.recorder import Recorder, read_recorder
from everstep.core.stacks.verdict import Judgement

PAPER = Layout(gpus_per_machine=2, tp=2, pp=4, dp=4, order=("tp", "pp", "dp"))
"""The layout of the paper's Fig. 7: machine = 4 * dp + pp."""

C10D = "torch/distributed/distributed_c10d.py"
MAIN = [("train", "train.py"), ("main", "train.py"), ("<module>", "train.py")]
GRAD_SYNC = [
    ("reduce_scatter_tensor", C10D),
    ("start_grad_sync", "megatron/core/distributed/param_and_grad_buffer.py"),
    *MAIN,
]
IRECV = [("irecv", C10D), ("recv_backward", "megatron/core/p2p_communication.py"), *MAIN]
ISEND = [("isend", C10D), ("send_forward", "megatron/core/p2p_communication.py"), *MAIN]
ALL_GATHER = [("all_gather_into_tensor", C10D), ("forward", "megatron/core/layers.py"), *MAIN]
TP_REDUCE = [("all_reduce", C10D), ("tp_all_reduce", "train.py"), *MAIN]
LOADER = [
    ("wait", "/usr/lib/python3.11/threading.py"),
    ("get", "/usr/lib/python3.11/multiprocessing/queues.py"),
    ("_try_get_data", "torch/utils/data/dataloader.py"),
    ("_next_data", "torch/utils/data/dataloader.py"),
    *MAIN,
]
USER_LOCK = [("acquire_token", "user.py"), ("on_step", "user.py"), *MAIN]

Calls = Sequence[tuple[str, str]]


def threads(calls: Calls, rank: int = 0, line: int = 10, **head: Any) -> list[dict[str, Any]]:
    """One main thread, in the form of py-spy."""
    pid = 1000 + rank
    return [
        {
            "pid": pid,
            "thread_id": 140_000_000 + rank,
            "thread_name": "MainThread",
            "os_thread_id": pid,
            "active": False,
            "owns_gil": False,
            "frames": [
                {
                    "name": name,
                    "filename": file,
                    "module": None,
                    "short_filename": file,
                    "line": line + index,
                    "locals": None,
                    "is_entry": True,
                }
                for index, (name, file) in enumerate(calls)
            ],
            **head,
        }
    ]


def dump(calls: Calls, rank: int = 0, line: int = 10, **head: Any) -> bytes:
    return json.dumps(threads(calls, rank, line, **head), indent=2).encode()


def fig_7() -> dict[int, bytes]:
    """Machines 0-11 in gradient sync, 12-13 in irecv, 14 in isend, 15 in all_gather."""
    calls = {12: IRECV, 13: IRECV, 14: ISEND, 15: ALL_GATHER}
    return {
        rank: dump(calls.get(PAPER.machine_of(rank), GRAD_SYNC), rank)
        for rank in range(PAPER.world_size)
    }


def everywhere(calls: Calls, layout: Layout = PAPER) -> dict[int, bytes]:
    return {rank: dump(calls, rank) for rank in range(layout.world_size)}


def recorder(
    groups: Mapping[str, tuple[int, int, str]], works: Mapping[str, tuple[int, str, int]] = {}
) -> bytes:
    """A recorder with groups by name: (enqueued, completed, ranks); and one work of each group."""
    entries = [
        {
            "collective_seq_id": number,
            "pg_id": index,
            "process_group": [name, ""],
            "profiling_name": f"nccl:{operation}",
            "input_sizes": [[elements]],
            "is_p2p": False,
            "state": "completed" if number <= groups[name][1] else "started",
            "retired": False,
        }
        for index, name in enumerate(groups)
        if name in works
        for number, operation, elements in [works[name]]
        if number <= groups[name][0]
    ]
    value = {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": "", "ranks": ranks}
            for name, (_, _, ranks) in groups.items()
        },
        "pg_status": {
            (str(index) if name in works and works[name][0] <= enqueued else name): {
                "last_enqueued_collective": str(enqueued),
                "last_completed_collective": str(completed),
                "last_started_collective": "-1",
            }
            for index, (name, (enqueued, completed, _)) in enumerate(groups.items())
        },
        "entries": entries,
    }
    return json.dumps(value).encode()


def snapshot(ranks: Mapping[int, bytes], recorders: Mapping[int, bytes] | None = None) -> Snapshot:
    reader = Reader()
    read = {rank: read_recorder(text) for rank, text in (recorders or {}).items()}
    known: dict[int, Recorder] = {r: value for r, value in read.items() if value is not None}
    return Snapshot({rank: reader.read(text) for rank, text in ranks.items()}, known)


def judged(
    ranks: Mapping[int, bytes],
    recorders: Mapping[int, bytes] | None = None,
    layout: Layout = PAPER,
) -> Judgement:
    return judge(layout, [snapshot(ranks, recorders)])


def write(folder: Path, ranks: Mapping[int, bytes], name: str = "rank-{}.json") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, text in ranks.items():
        (folder / name.format(rank)).write_bytes(text)


def without(ranks: Mapping[int, bytes], left_out: Iterable[int]) -> dict[int, bytes]:
    gone = set(left_out)
    return {rank: text for rank, text in ranks.items() if rank not in gone}
