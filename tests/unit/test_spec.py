from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from everstep.core.errors import InputError
from everstep.core.groups import Layout
from everstep.core.slow.ballot import VotePolicy
from everstep.core.vocabulary import Mode, Rung
from everstep.spec.detection import Detection
from everstep.spec.job import JobSpec
from everstep.spec.ladder import Ladder
from everstep.spec.load import load_spec
from everstep.spec.policies import CodeSource, Parallelism

SPEC = """\
name: gpt-demo
command: [python, train.py, --steps, "60"]
code: {directory: .}
machines: 4
gpus_per_machine: 2
parallelism: {tp: 2, pp: 2, dp: 2, order: tp-pp-dp}
standby: {failure_rate_per_day: 0.0012, quantile: 0.99}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text)
    return path


def refusal(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(InputError) as refused:
        load_spec(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) <= 7
    return message.removeprefix(f"{path}: ")


def models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from models(inner)


def test_the_example_of_the_documentation(folder: Path) -> None:
    spec = load_spec(write(folder, SPEC))
    assert spec.command == ("python", "train.py", "--steps", "60")
    assert spec.code.directory == str(folder)
    assert spec.layout() == Layout(2, tp=2, pp=2, dp=2, order=("tp", "pp", "dp"))
    assert spec.parallelism.text() == "tp=2,pp=2,dp=2;order=tp-pp-dp"
    assert spec.standby_count() == 0
    assert spec.backup_plan().holder[0] == 6


def test_defaults(folder: Path) -> None:
    text = SPEC.replace(", order: tp-pp-dp", "").replace("standby:", "# standby:")
    spec = load_spec(write(folder, text))
    assert spec.parallelism.order == "tp-cp-ep-dp-pp"
    assert (spec.standby.failure_rate_per_day, spec.standby.quantile) == (0.0012, 0.99)
    assert spec.environment == {}
    assert spec.prewarm == ()
    assert (spec.checkpoint.backup, spec.checkpoint.backup_timeout_s) == (True, 10)
    assert spec.checkpoint.when_all_copies_lost == "restart"
    detection = spec.detection
    assert (detection.heartbeat_interval_s, detection.agent_lost_after_s) == (0.5, 3.0)
    assert detection.reconnect_grace_s == 0.3
    assert detection.votes() == VotePolicy(round_s=10.0, rounds=5, flags=4, ratio=0.04)
    assert Detection(slow_rounds=0).votes() is None
    assert (spec.ladder.evidence_window_s, spec.ladder.first_step_timeout_s) == (0.2, 600)
    assert (spec.ladder.probation_steps, spec.probation_s()) == (5, 10)
    assert spec.ladder.max_restarts_without_progress == 3
    assert (spec.safety.max_evicted_ratio, spec.safety.window_s) == (0.5, 86_400)


@pytest.mark.parametrize(
    ("machines", "given", "probation_s"), [(16, None, 10.0), (17, None, 1800.0), (17, 60.0, 60.0)]
)
def test_a_job_that_is_no_trial_waits_for_faults_to_come_back(
    machines: int, given: float | None, probation_s: float
) -> None:
    spec = JobSpec(
        name="job",
        command=("python", "train.py"),
        code=CodeSource(directory="."),
        machines=machines,
        gpus_per_machine=1,
        parallelism=Parallelism(dp=machines),
        ladder=Ladder(probation_s=given),
    )
    assert spec.probation_s() == probation_s


def test_one_word_sets_all_modes(folder: Path) -> None:
    spec = load_spec(write(folder, f"{SPEC}safety: {{modes: observe}}\n"))
    assert spec.safety.modes.by_rung() == dict.fromkeys(
        [Rung.EVICT, Rung.CHECKS, Rung.REATTEMPT, Rung.ROLLBACK, Rung.REPLAY], Mode.OBSERVE
    )
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_previous_code_is_found_beside_the_spec(folder: Path) -> None:
    (folder / "old").mkdir()
    text = SPEC.replace("{directory: .}", "{directory: ., previous: old}")
    assert load_spec(write(folder, text)).code.previous == str(folder / "old")
    assert "code.previous" in refusal(folder, text.replace("previous: old", "previous: gone"))


def test_every_field_has_a_line_of_documentation() -> None:
    for model in models(JobSpec):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"
            assert field.description.endswith(".")
            assert "\n" not in field.description


@pytest.mark.parametrize("standby", ["{count: 2}", "{quantile: 0.999}", "{}"])
def test_a_spec_survives_being_sent(folder: Path, standby: str) -> None:
    text = SPEC.replace("{failure_rate_per_day: 0.0012, quantile: 0.99}", standby)
    spec = load_spec(write(folder, text))
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec
    assert JobSpec.model_validate(spec.model_dump()) == spec


def test_specs_cannot_be_changed(folder: Path) -> None:
    spec = load_spec(write(folder, SPEC))
    with pytest.raises(ValidationError, match="frozen"):
        setattr(spec, "machines", 5)  # noqa: B010 - a checker would refuse the plain form


def test_standby_counts() -> None:
    def count(machines: int, **standby: Any) -> int:
        return JobSpec.model_validate(
            {
                "name": "a",
                "command": ["python"],
                "code": {"directory": "."},
                "machines": machines,
                "gpus_per_machine": 1,
                "parallelism": {"dp": machines},
                "standby": standby,
            }
        ).standby_count()

    assert count(1024) == 4
    assert count(1024, quantile=0.5) == 1
    assert count(1024, failure_rate_per_day=0.0) == 0
    assert count(1024, count=7) == 7


def test_backups_can_be_switched_off(folder: Path) -> None:
    plan = load_spec(write(folder, SPEC + "checkpoint: {backup: false}\n")).backup_plan()
    assert plan.holder == {}
    assert "checkpoint.backup" in plan.unprotected[7]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("machines: 4\n", "", "machines: is missing. Add it, such as machines: 4 (Machines"),
        ("machines: 4", "machines: four", "machines: 'four' is not a whole number"),
        ("machines: 4", "machines: true", "machines: True is not a whole number"),
        ("machines: 4", "machines: 0", "machines: 0 must be above 0"),
        ("standby:", "standbye:", "standbye: there is no such field. Did you mean standby?"),
        ("dp: 2", "dq: 2", "parallelism.dq: there is no such field. Did you mean dp?"),
        (
            "dp: 2",
            "dp: 3",
            "parallelism: tp 2 x dp 3 x pp 2 makes 12 ranks, but machines 4 x gpus_per_machine 2"
            " makes 8. Set dp to 2, or machines to 6",
        ),
        ("{tp: 2, pp: 2", "{tp: 3, pp: 1", "Set machines to 3"),
        ("{tp: 2, pp: 2, dp: 2", "{tp: 3, pp: 3, dp: 1", "Change sizes until"),
        ("tp-pp-dp", "tp-xx-dp", "parallelism.order: 'xx' in 'tp-xx-dp' is not a dimension. Known"),
        ("tp-pp-dp", "tp-dp", "parallelism.order: 'tp-dp' leaves out pp, which is 2. Add it"),
        ("tp-pp-dp", "tp-pp-dp-tp", "parallelism.order: 'tp-pp-dp-tp' names tp twice"),
        ("gpt-demo", "GPT demo", "name: 'GPT demo' is not a DNS label"),
        ('"60"', "60", "command[3]: 60 is not text. Write it in quotes"),
        ('[python, train.py, --steps, "60"]', "[]", "command: [] is empty"),
        ('[python, train.py, --steps, "60"]', '[" "]', "command: [' '] cannot be run"),
        ('[python, train.py, --steps, "60"]', "python x", "command: 'python x' is not a list"),
        ("{directory: .}", ".", "code: '.' is not a mapping. Write {FIELD: VALUE} with: directory"),
        ("{directory: .}", "{}", "code: nothing is given"),
        ("{directory: .}", "{directory: ., git: g, ref: r}", "code: both directory and git"),
        ("{directory: .}", "{git: g}", "code.ref: is missing"),
        ("{directory: .}", "{directory: ., ref: main}", "code.git: is missing"),
        ("0.99}", "1.0}", "standby.quantile: 1.0 must be below 1.0"),
        ("0.99}", ".nan}", "standby.quantile: nan is not a finite number"),
        ("quantile: 0.99", "count: 1", "standby.count: 1 is given beside"),
        ("0.0012, quantile: 0.99", "null, quantile: null", "standby: neither a count nor a whole"),
    ],
)
def test_wrong_fields_name_field_value_and_fix(
    folder: Path, old: str, new: str, message: str
) -> None:
    assert old in SPEC
    assert message in refusal(folder, SPEC.replace(old, new, 1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "detection: {heartbeat_interval_s: 1.5}",
            "detection.heartbeat_interval_s: twice 1.5 is not below agent_lost_after_s 3.0",
        ),
        (
            "detection: {reconnect_grace_s: 3}",
            "detection.reconnect_grace_s: 3.0 is not below agent_lost_after_s 3.0",
        ),
        (
            "detection: {slow_flags: 2}",
            "detection.slow_flags: 2 is no majority of slow_rounds 5. Give 3 to 5",
        ),
        ("environment: {A: 1}", "environment.A: 1 is not text. Write it in quotes"),
        ("environment: {A=B: x}", "environment: 'A=B' cannot name a variable"),
        ("environment: {WORLD_SIZE: '4'}", "environment: WORLD_SIZE is set by Everstep"),
        ("environment: {EVERSTEP_JOB: x}", "environment: EVERSTEP_JOB is set by Everstep"),
        ("topology_label: a b", "topology_label: 'a b' cannot name a label"),
        ("prewarm: [a-b]", "prewarm: 'a-b' is not the name of a module"),
        ("checkpoint: {backup: 'yes'}", "checkpoint.backup: 'yes' is neither true nor false"),
        (
            "checkpoint: {replicated: [model, train.]}",
            "checkpoint.replicated: 'train.' names nothing in a state. Give a key of the saved"
            " state, such as model, or train.model inside train",
        ),
        (
            "checkpoint: {when_all_copies_lost: ask}",
            "checkpoint.when_all_copies_lost: 'ask' is none of 'restart' or 'hold'",
        ),
        ("safety: {max_evicted_ratio: 1.5}", "safety.max_evicted_ratio: 1.5 must be at most 1.0"),
        ("ladder: {probation_steps: 2.5}", "ladder.probation_steps: 2.5 is not a whole number"),
        ("safety: {modes: {evict: ask}}", "safety.modes.evict: 'ask' is none of 'observe', 'app"),
        ("safety: {webhook: 'https://x'}", "safety.webhook: 'https://x' is not the name of a"),
        ("replay: {shows_ratio: 0}", "replay.shows_ratio: 0 must be above 0"),
        ("safety: 3", "safety: 3 is not a mapping. Write {FIELD: VALUE} with: max_evicted_ratio"),
    ],
)
def test_wrong_policies_name_field_value_and_fix(folder: Path, line: str, message: str) -> None:
    assert message in refusal(folder, f"{SPEC}{line}\n")


def test_several_problems_stand_on_a_line_each(folder: Path) -> None:
    message = refusal(folder, SPEC.replace("machines: 4", "machnes: 4"))
    assert message.splitlines() == [
        "2 problems. Correct each of them:",
        "  machines: is missing. Add it, such as machines: 4"
        " (Machines that train at the same time)",
        "  machnes: there is no such field. Did you mean machines?",
    ]


def test_many_problems_are_cut_off_after_five(folder: Path) -> None:
    lines = refusal(folder, "a: 1\n").splitlines()
    assert lines[0].startswith("7 problems")
    assert lines[-1] == "  ... and 2 more"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("- a\n- b\n", "holds ['a', 'b'], not fields"),
        ("name: [", "is not valid YAML, line 1, column 8"),
        ("name: a\n\tb: c\n", "is not valid YAML, line 2"),
        ("a: \x00", "is not valid YAML"),
        ("[" * 500, "is nested too deeply"),
    ],
)
def test_files_that_are_no_mapping_in_yaml(folder: Path, text: str, message: str) -> None:
    assert message in refusal(folder, text)


def test_files_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load_spec(folder / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_spec(folder)
    path = folder / "job.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load_spec(path)
    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        load_spec(path / "job.yaml")


def test_yaml_runs_no_code(folder: Path) -> None:
    marker = folder / "marker"
    text = f"name: !!python/object/apply:pathlib.Path.touch [{marker}]\n"
    assert "is not valid YAML" in refusal(folder, text)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("absent", "absent does not exist. Give a folder that exists"),
        ("train.py", "train.py is not a folder"),
        ("loop", "loop cannot be read: Too many levels of symbolic links"),
        ('"\\0"', "cannot be read: embedded null byte"),
    ],
)
def test_code_folders_that_cannot_be_used(folder: Path, directory: str, message: str) -> None:
    (folder / "loop").symlink_to("loop")
    refused = refusal(folder, SPEC.replace("directory: .", f"directory: {directory}"))
    assert refused.startswith("code.directory: ")
    assert message in refused


def test_the_code_folder_is_relative_to_the_spec(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text("")
    (folder / "train.py").unlink()
    spec = load_spec(write(folder, SPEC.replace("directory: .", "directory: src")))
    assert spec.code.directory == str(folder / "src")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("[no-such-program-1]", "command[0]: there is no program 'no-such-program-1' on PATH"),
        ("[./run.sh]", "run.sh. Correct the path"),
        ("[./train.py]", "train.py is not executable. Run: chmod +x"),
        ("[python, -u, trian.py]", "command: there is no script 'trian.py' in"),
        ("[python3, -X, dev, trian.py]", "Did you mean train.py?"),
        ("[/usr/bin/env]", ""),
        ("[sh, -c, 'true']", ""),
        ("[python3, -um, json.tool]", ""),
        ("[python, -c, 'pass', nothing.py]", ""),
        ("[python, --check-hash-based-pycs, never, train.py]", ""),
        ("[python]", ""),
    ],
)
def test_programs_and_scripts_are_looked_for(folder: Path, command: str, message: str) -> None:
    text = SPEC.replace('[python, train.py, --steps, "60"]', command)
    if message:
        assert message in refusal(folder, text)
    else:
        assert load_spec(write(folder, text)).command


def test_python_needs_not_be_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert load_spec(write(folder, SPEC)).command[0] == "python"
    assert "there is no program 'sh'" in refusal(folder, SPEC.replace("[python,", "[sh,"))


def test_programs_are_looked_for_on_the_path_of_the_job(folder: Path) -> None:
    program = folder / "bin" / "launch-1"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = SPEC.replace("[python,", "[launch-1,")
    assert "on PATH" in refusal(folder, text)
    spec = load_spec(write(folder, f"{text}environment: {{PATH: {program.parent}}}\n"))
    assert spec.command[0] == "launch-1"


def test_an_empty_code_folder_says_where_the_script_should_be(folder: Path) -> None:
    (folder / "train.py").unlink()
    assert "Put it there, or correct code.directory" in refusal(folder, SPEC)


def test_code_from_git_is_not_looked_for_here(folder: Path) -> None:
    text = SPEC.replace("{directory: .}", "{git: https://example.org/x.git, ref: main}")
    text = text.replace("train.py", "absent.py")
    assert load_spec(write(folder, text)).code.ref == "main"


STORAGE = SPEC + "checkpoint: {storage: {%s}}\n"


def test_a_storage_folder_is_relative_to_the_spec(folder: Path) -> None:
    spec = load_spec(write(folder, STORAGE % "path: kept, every_steps: 5"))
    storage = spec.checkpoint.storage
    assert storage is not None
    assert storage.path == str(folder / "kept")
    assert (storage.every_steps, storage.every_s, storage.keep) == (5, None, 3)
    assert storage.policy().slow_after_s == 300.0
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec


def test_a_storage_url_stays_as_it_is(folder: Path) -> None:
    spec = load_spec(write(folder, STORAGE % "path: 's3://bucket/x', every_s: 1800"))
    assert spec.checkpoint.storage is not None
    assert spec.checkpoint.storage.path == "s3://bucket/x"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            "path: x",
            "checkpoint.storage: nothing says when to save. Give every_steps: N, every_s: SECONDS,"
            " or both",
        ),
        (
            "every_s: 5",
            "checkpoint.storage.path: is missing. Add it, such as path: s3://bucket/checkpoints"
            " (Folder, relative to the spec file's, or URL that fsspec knows; every machine must"
            " reach it)",
        ),
        (
            "path: x, every_step: 5",
            "checkpoint.storage.every_step: there is no such field. Did you mean every_steps?",
        ),
        (
            "path: x, every_s: 5, slow_after_s: 9.0, give_up_after_s: 8.0",
            "checkpoint.storage.slow_after_s: 9.0 is not below give_up_after_s 8.0, so nobody would"
            " be told before a save is ended. Lower slow_after_s or raise give_up_after_s",
        ),
        (
            "path: x, every_steps: 0",
            "checkpoint.storage.every_steps: 0 must be above 0. Give a larger number",
        ),
    ],
)
def test_what_is_wrong_with_a_storage_is_named(folder: Path, fields: str, message: str) -> None:
    assert refusal(folder, STORAGE % fields) == message


def test_how_logs_tell_of_steps(folder: Path) -> None:
    pattern = r"iteration +(?P<step>\d+).*loss: (?P<loss>\S+)|(?P<evaluation>evaluating)"
    spec = load_spec(write(folder, SPEC + f"detection: {{step_pattern: '{pattern}'}}\n"))
    assert spec.detection.step_pattern == pattern
    assert spec.detection.hang_after_at_least_s == 10.0


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("step (", "missing ), unterminated subpattern"),
        (r"step (?P<number>\d+)", "'number' is no group of a step"),
        (r"(?P<los>\S+) (?P<step>\d+)", "'los' is no group of a step. Did you mean loss?"),
        (r"step (\d+)", "has no group step. Name the step's number"),
    ],
)
def test_patterns_that_find_no_steps_are_refused(folder: Path, pattern: str, words: str) -> None:
    message = refusal(folder, SPEC + f"detection: {{step_pattern: '{pattern}'}}\n")
    assert message.startswith("detection.step_pattern: ")
    assert words in message
