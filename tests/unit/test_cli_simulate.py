from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.unit.simulated import SPEC, setting_of
from tests.unit.test_report_page import check_whole_and_offline
from typer.testing import CliRunner, Result

from everstep.cli.simulate import simulate_command
from everstep.cli.simulate_view import Policies, sections
from everstep.core.errors import InputError
from everstep.core.simulation.engine import simulate
from everstep.core.simulation.figures import figures
from everstep.core.simulation.setting import Choices
from everstep.spec.load import read_spec
from everstep.spec.load_simulation import load_durations, load_policy, load_stream
from everstep.spec.simulation import StreamSpec

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "simulation"
RECORDED = {
    "at_s": 5000.0, "symptom": "gpu_unavailable", "cause": "machine", "shows": "sensed",
    "detection": "gpu", "slots": [3],
}  # fmt: skip


def run(tmp_path: Path, *options: str) -> Result:
    path = tmp_path / "job.yaml"
    path.write_text(SPEC.model_dump_json(exclude_none=True))
    app = typer.Typer()
    app.command()(simulate_command)
    return CliRunner().invoke(app, [str(path), *options])


def answer(tmp_path: Path, *options: str) -> Any:
    result = run(tmp_path, "--json", *options)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def complaint(tmp_path: Path, *options: str) -> str:
    result = run(tmp_path, *options)
    assert isinstance(result.exception, InputError), result.output
    return str(result.exception)


def recorded(tmp_path: Path, *lines: dict[str, Any]) -> str:
    path = tmp_path / "faults.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


def test_policies_are_held_against_each_other_on_the_same_faults(tmp_path: Path) -> None:
    policy = EXAMPLES / "policies" / "requeue.yaml"
    options = ("--days", "90", "--seeds", "3", "--policy", str(policy))
    found = answer(tmp_path, *options)["policies"]
    assert list(found) == ["everstep", "restart all, requeue"]
    own, other = found["everstep"], found["restart all, requeue"]
    assert len(own["seeds"]) == 3
    assert own["ettr"]["low"] > other["ettr"]["high"]
    assert other["ahead_of_it"]["low"] > 0
    assert answer(tmp_path, *options)["policies"] == found, "to the digit"


def test_everything_is_shown_to_a_person(tmp_path: Path) -> None:
    policy = str(EXAMPLES / "policies" / "stress_test.yaml")
    shown = run(tmp_path, "--days", "60", "--policy", policy).stdout
    for title in (
        "ETTR", "Table 4", "Table 6", "What resolved incidents", "Where the time went",
        "Seconds lost a day, by symptom", "* so far, . last hour",
    ):  # fmt: skip
        assert title in shown


def test_one_seed_is_shown_without_an_interval(tmp_path: Path) -> None:
    policy = ("--policy", str(EXAMPLES / "policies" / "requeue.yaml"))
    shown = run(tmp_path, "--days", "5", *policy).stdout
    assert re.search(r"small, 5 days: ETTR \d+\.\d\d %$", shown, re.MULTILINE)
    assert "One seed tells no interval; --seeds 5 does." in " ".join(shown.split())
    assert not re.search(r"\(\S+ +to", shown)
    found = answer(tmp_path, "--days", "5", *policy)["policies"]["restart all, requeue"]
    for interval in (found["ettr"], found["ahead_of_it"]):
        assert interval["mean"] is not None
        assert interval["low"] is None
        assert interval["high"] is None


def test_whether_policies_can_be_told_apart_is_said_by_their_difference(tmp_path: Path) -> None:
    alike = tmp_path / "alike.yaml"
    alike.write_text("name: alike\n")
    options = ("--policy", str(alike), "--policy", str(EXAMPLES / "policies" / "requeue.yaml"))
    shown = run(tmp_path, "--days", "90", "--seeds", "3", *options).stdout
    table = shown.split("Policies, with the same faults")[1].split("└")[0]
    same, other = table.split("│ alike ")[1].split("│ restart ")
    # The difference of a policy from itself is 0, and its interval holds nothing else.
    assert "holds 0" in same
    assert "clear" in other
    assert "overlap" not in shown
    for word in ("ahead by:", "false evictions:", "missed:", "spares used:"):
        assert f"{word} " in " ".join(shown.split())


def test_tables_say_of_which_policy_and_of_how_many_seeds_they_are(tmp_path: Path) -> None:
    one = run(tmp_path, "--days", "5").stdout
    assert "Table 6, in seconds: everstep\n" in one
    several = run(tmp_path, "--days", "5", "--seeds", "2").stdout
    assert "Where the time went: everstep, mean of 2 seeds\n" in several
    assert "seed 1 only, 5 days; * so far, . last hour" in several


def test_tables_of_one_other_policy_say_so() -> None:
    one = figures(simulate(setting_of(Choices("8 standbys"), days=0.1), ()))
    found = sections(Policies("small", 0.1, {"8 standbys": [one]}))
    assert {section.title.partition(": ")[2] for section in found} == {"8 standbys"}


@pytest.mark.parametrize("columns", ["80", "100"])
def test_no_symptom_is_cut(tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everstep.cli.console.out._width", int(columns))
    symptoms = ("external_service_error", "code_data_adjustment", "cuda_error", "os_kernel_panic")
    stream = recorded(
        tmp_path,
        *({**RECORDED, "symptom": name, "at_s": 5e3 * at} for at, name in enumerate(symptoms, 1)),
    )
    policies = [("--policy", str(path)) for path in sorted((EXAMPLES / "policies").iterdir())]
    words = [word for each in policies for word in each]
    shown = run(tmp_path, "--days", "1", "--stream", stream, *words).stdout
    assert {*symptoms, "everstep", "standbys", "suspects", "restart"} <= {*shown.split()}
    tables = [line for line in shown.splitlines() if line.startswith(("│", "┃"))]
    assert max(map(len, tables)) <= int(columns)


def test_page_has_the_curve_and_the_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run(tmp_path, "--days", "30", "--html", str(page))
    text = page.read_text()
    assert "<polyline" in text
    assert "Table 6, in seconds" in text
    check_whole_and_offline(text)


def test_page_tells_of_which_run_a_table_is_and_has_none_twice(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    stream = recorded(tmp_path, {**RECORDED, "shows": "lost", "at_s": 90_000.0})
    run(tmp_path, "--days", "3", "--stream", stream, "--html", str(page))
    text = page.read_text()
    assert re.search(r"<h1>small, simulated: ETTR \d\d\.\d\d %</h1>", text)
    assert re.search(r"<p>3 days, \d+ steps and 1 incident with seed 1\. ", text)
    assert text.count("Where the time went") == 1
    assert "UTC" not in text
    assert "<td>day 2, 01:00:10.00</td>" in text
    # What was seen is that the agent is gone; Table 6 counts what was really wrong.
    assert text.count("gpu_unavailable</td>") == 2
    assert "<td>gpu_unavailable: evict<br>" in text
    assert "agent_lost" not in text
    run(tmp_path, "--days", "3", "--seeds", "2", "--html", str(page))
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert len({*titles}) == len(titles)
    assert "Where the time went: everstep, seed 1" in titles
    assert "Where the time went: everstep, mean of 2 seeds" in titles


def test_recorded_faults_happen_as_they_did(tmp_path: Path) -> None:
    stream = recorded(tmp_path, RECORDED, {**RECORDED, "at_s": 9000.0, "slots": [7]})
    found = answer(tmp_path, "--stream", stream, "--days", "1")["policies"]["everstep"]["seeds"][0]
    assert found["right_evictions"] == 2
    assert found["symptoms"]["gpu_unavailable"]["incidents"] == 2


def test_the_recorded_faults_of_the_examples_happen(tmp_path: Path) -> None:
    stream = str(EXAMPLES / "faults.jsonl")
    found = answer(tmp_path, "--stream", stream, "--days", "4")["policies"]["everstep"]["seeds"][0]
    lines = [json.loads(line) for line in Path(stream).read_text().splitlines()]
    assert {*found["symptoms"]} == {line["symptom"] for line in lines}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"slots": [99]}, "fault 1 is at slot 99 of 16. Give slots from 0 to 15"),
        ({"symptom": "gpu"}, "'gpu' is none. Known are: cuda_error"),
        ({"detection": "luck"}, "there is no detection time 'luck'. Known are: gpu"),
        ({"cause": "fate"}, "cause: 'fate' is none of"),
        ({"cause": "wish"}, "cause: 'wish' does not go with shows 'sensed'. Give both as wish"),
        ({"shows": "wish"}, "cause: 'machine' does not go with shows 'wish'. Give both as wish"),
        ({"shows": "words"}, "words: is missing. Give what the rank says last"),
        ({"at_s": -1}, "at_s: -1 must be at least 0"),
    ],
)
def test_wrong_faults_are_told_by_their_line_and_field(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    stream = recorded(tmp_path, {**RECORDED, **change})
    assert told in complaint(tmp_path, "--stream", stream)


def test_wrong_order_and_no_json_are_told_by_their_line(tmp_path: Path) -> None:
    stream = recorded(tmp_path, RECORDED, {**RECORDED, "at_s": 1.0})
    assert "line 2: comes before the line above" in complaint(tmp_path, "--stream", stream)
    Path(stream).write_text("{")
    assert "line 1: is not JSON" in complaint(tmp_path, "--stream", stream)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--days", "0"), "--days: 0 is out of range"),
        (("--seeds", "0"), "--seeds: 0 is too few"),
        (("--kills", "-1"), "--kills: -1 is too few"),
        (("--kills", "2"), "--kills: 2 controllers cannot be killed where there is none"),
        (
            ("--stream", "nowhere.yaml"),
            "--stream nowhere.yaml: there is no such file, and no such preset",
        ),
        (
            ("--durations", "mesured"),
            "--durations mesured: there is no such file, and no such preset. Give a file, or paper"
            " or measured",
        ),
        (
            ("--policy", "requeue"),
            "--policy requeue: there is no such file. Give a YAML file of what a policy changes",
        ),
        (("--stream", "/"), "--stream /: is a folder, and no such preset"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    assert told in complaint(tmp_path, *options)


def test_durations_of_an_unknown_symptom_are_refused(tmp_path: Path) -> None:
    preset = ROOT / "core/everstep/spec/presets/durations_paper.yaml"
    durations = tmp_path / "durations.yaml"
    durations.write_text(preset.read_text().replace("cuda_error: 518", "cuda: 518"))
    told = complaint(tmp_path, "--durations", str(durations))
    assert "stress.cuda: 'cuda' is none. Known are: cuda_error" in told


def test_a_stream_whose_only_way_is_incomplete_is_not_called_empty(tmp_path: Path) -> None:
    stream = tmp_path / "stream.yaml"
    stream.write_text(
        "every_h: 1\nper_machines: 16\nways:\n"
        "  - {symptom: cuda_error, weight: 1, cause: machine, shows: sensed}\n"
    )
    told = complaint(tmp_path, "--stream", str(stream))
    assert told.startswith(f"{stream}: ways[0].detection: is missing. Add it")
    stream.write_text("every_h: 1\nper_machines: 16\nways: []\n")
    assert "ways: [] is empty. Give at least one item" in complaint(
        tmp_path, "--stream", str(stream)
    )


def test_a_page_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path) -> None:
    for page, told in (
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "page.html", f"there is no folder {tmp_path / 'no'}"),
    ):
        # So long a simulation is refused for the page alone.
        result = run(tmp_path, "--days", "3650", "--seeds", "1000", "--html", str(page))
        assert str(result.exception) == f"--html {page}: {told}. Name a file to write."


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--seeds", "2"), "--seeds: 2 runs take too long"),
        (("--policy", "requeue.yaml"), "'restart all, requeue' is not what the workflows do"),
        (("--policy", "retry_first.yaml"), "'retry first' is not what the workflows do"),
    ],
)
def test_what_the_workflows_cannot_be_asked_for_is_told(
    tmp_path: Path, options: tuple[str, str], told: str
) -> None:
    option, value = options
    given = str(EXAMPLES / "policies" / value) if option == "--policy" else value
    assert told in complaint(tmp_path, "--engine", "workflows", option, given)


def test_one_policy_given_twice_is_refused(tmp_path: Path) -> None:
    policy = ("--policy", str(EXAMPLES / "policies" / "standbys_1.yaml"))
    told = complaint(tmp_path, "--engine", "workflows", *policy, *policy)
    assert "--policy: 2 are given, and the workflows run with one" in told
    assert "two policies have one name" in complaint(tmp_path, *policy, *policy)


def test_two_policies_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("name: everstep\n")
    assert "two policies have one name" in complaint(tmp_path, "--policy", str(path))
    path.write_text("name: x\nmethod: luck\n")
    assert "method: 'luck' is none of" in complaint(tmp_path, "--policy", str(path))


def test_presets_and_examples_can_be_read() -> None:
    stream = load_stream("paper")
    assert isinstance(stream, StreamSpec)
    assert sum(way.weight for way in stream.ways) == 55_365, "the total of Table 1"
    assert stream.every_s(1200) == pytest.approx(2.78 * 3600)
    for name in ("paper", "measured"):
        assert load_durations(name).step_s == 9.7
    assert read_spec(EXAMPLES / "job.yaml").machines == 1200
    names = {load_policy(path).name for path in (EXAMPLES / "policies").iterdir()}
    assert len(names) == len(list((EXAMPLES / "policies").iterdir()))


def test_paper_preset_keeps_the_counts_of_table_1() -> None:
    stream = load_stream("paper")
    assert isinstance(stream, StreamSpec)
    counts: dict[str, float] = {}
    for way in stream.ways:
        counts[way.symptom] = counts.get(way.symptom, 0) + way.weight
    assert counts["cuda_error"] == 19_968
    assert counts["job_hang"] == 5_506
    assert counts["infiniband_error"] == 1_599
    assert counts["nan_value"] == 148
    assert counts["code_data_adjustment"] == 9_582
