from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from everstep.cli.plan import plan, plan_command
from everstep.core.placement import exposed_groups, no_backup
from everstep.core.standby import Seen
from everstep.spec.job import JobSpec


def job(machines: int, gpus: int, parallelism: dict[str, Any], **more: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "gpt-demo",
            "command": ["python", "-c", "pass"],
            "code": {"directory": "."},
            "machines": machines,
            "gpus_per_machine": gpus,
            "parallelism": parallelism,
            **more,
        }
    )


FIG_9 = job(8, 2, {"tp": 2, "pp": 4, "dp": 2, "order": "tp-pp-dp"}, standby={"count": 1})
PRODUCTION = job(1200, 8, {"tp": 8, "pp": 8, "dp": 150, "order": "tp-pp-dp"})


def run(tmp_path: Path, spec: JobSpec, *options: str) -> Result:
    path = tmp_path / "job.yaml"
    # JSON is YAML.
    path.write_text(spec.model_dump_json(exclude_none=True))
    app = typer.Typer()
    app.command()(plan_command)
    return CliRunner().invoke(app, [str(path), *options])


def test_json_of_figure_9(tmp_path: Path) -> None:
    result = run(tmp_path, FIG_9, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found == plan(FIG_9)
    assert set(found) == {
        "machines", "ranks", "groups", "backup", "unprotected", "exposed", "standby", "memory",
        "storage",
    }  # fmt: skip
    assert found["machines"][4] == {"machine": 4, "ranks": [8, 9]}
    assert found["ranks"][9] == {
        "rank": 9,
        "machine": 4,
        "coordinates": {"tp": 1, "pp": 0, "dp": 1},
    }
    assert found["groups"]["pp"][2] == [8, 10, 12, 14]
    assert set(found["groups"]) == {"tp", "pp", "dp"}
    assert [found["backup"][str(rank)] for rank in (8, 9, 2, 3)] == [2, 3, 8, 9]
    assert len(found["backup"]) == 16
    assert found["unprotected"] == {}
    assert found["exposed"] == []
    assert found["standby"]["count"] == 1


def test_json_shows_other_dimensions_only_when_they_are_used() -> None:
    found = plan(job(2, 2, {"cp": 2, "dp": 2}))
    assert set(found["groups"]) == {"tp", "cp", "dp", "pp"}
    assert found["groups"]["tp"] == [[0], [1], [2], [3]]
    assert found["ranks"][3]["coordinates"] == {"tp": 0, "cp": 1, "dp": 1, "pp": 0}


def test_json_says_why_a_rank_is_unprotected() -> None:
    found = plan(job(1, 2, {"tp": 2}))
    assert found["backup"] == {}
    assert set(found["unprotected"]) == {"0", "1"}
    assert "one machine" in found["unprotected"]["0"]


def test_json_names_every_group_that_cannot_be_evicted_whole() -> None:
    # Both replicas have a rank on either machine, each pipeline lies within one.
    found = plan(job(2, 2, {"tp": 1, "pp": 2, "dp": 2, "order": "tp-pp-dp"}))
    assert found["unprotected"] == {}
    assert found["exposed"] == [
        {
            "kind": "dp",
            "ranks": ranks,
            "machines": [0, 1],
            "lost": [0, 1, 2, 3],
            "reason": "it occupies all machines of the job",
        }
        for ranks in ([0, 2], [1, 3])
    ]


def test_standby_rule() -> None:
    standby = plan(PRODUCTION)["standby"]
    assert standby["count"] == 5
    assert standby["rule"] == (
        "With probability 0.99, no more than 5 of 1200 machines fail on the same day,"
        " when each fails with probability 0.0012. The job learns from its own failures; this rate"
        " counts for 1000 machine-days."
    )
    assert (standby["failure_rate_per_day"], standby["quantile"]) == (0.0012, 0.99)


def test_standbys_after_what_a_job_has_seen(tmp_path: Path) -> None:
    # 1.2 failures in 1,000 machine-days beforehand, and 28.8 in 9,000 after them: 0.3 % a day.
    found = plan(PRODUCTION, Seen(29, 9_000.0))["standby"]
    assert round(found["failure_rate_per_day"], 5) == 0.00302
    assert found["count"] == 9
    calm = plan(PRODUCTION, Seen(0, 36_000.0))["standby"]
    assert (calm["count"], calm["rule"].split(": ")[1]) == (
        1,
        "what 0 failures in 36000 machine-days make of 0.0012, which counts for 1000.",
    )
    fixed = PRODUCTION.model_copy(
        update={"standby": PRODUCTION.standby.model_copy(update={"prior_machine_days": None})}
    )
    assert plan(fixed, Seen(29, 9_000.0))["standby"]["count"] == 5
    assert "Standby machines: 1" in run(tmp_path, FIG_9, "--seen", "3/100").stdout
    refused = run(tmp_path, FIG_9, "--seen", "3 failures")
    assert refused.exit_code == 2
    assert "--seen 3 failures: is not FAILURES/DAYS" in refused.stderr


def test_text_of_a_small_job(tmp_path: Path) -> None:
    result = run(tmp_path, FIG_9)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert "gpt-demo: 16 ranks on 8 machines of 2, order tp-pp-dp" in result.stdout
    assert ["4", "8-9", "0-1", "0", "1", "machine", "1"] in lines
    assert ["pp", "4", "4", "4", "ranks", "0-6", "by", "2", "nothing"] in lines
    assert "Standby machines: 1. The spec asks for 1." in result.stdout


def in_parts(spec: JobSpec) -> JobSpec:
    checkpoint = spec.checkpoint.model_copy(update={"replicated": ("model",)})
    return spec.model_copy(update={"checkpoint": checkpoint})


def test_memory_shrinks_where_a_dp_group_keeps_things_once(tmp_path: Path) -> None:
    # Two own ranks and two held ones, two steps of each.
    assert plan(FIG_9)["memory"]["times_replicated"] == 8
    memory = plan(in_parts(FIG_9))["memory"]
    assert (memory["times_own"], memory["times_replicated"]) == (8, 4)
    text = " ".join(run(tmp_path, in_parts(FIG_9)).stdout.split())
    assert "of model, which each of 2 ranks of a DP group keeps a part of, 4 times" in text


def test_with_one_shard_its_dp_group_loses_its_state() -> None:
    # In two replicas of two stages on a machine each, machine 0 keeps no copy elsewhere.
    spec = job(2, 2, {"tp": 1, "pp": 2, "dp": 2, "order": "tp-pp-dp"})
    layout, backup = spec.layout(), no_backup(spec.layout(), "switched off")
    lost = [one.lost for one in exposed_groups(layout, backup) if one.group.kind == "pp"]
    assert lost == [(0, 1), (2, 3)]
    lost = [one.lost for one in exposed_groups(layout, backup, True) if one.group.kind == "pp"]
    assert lost == [(0, 1, 2, 3), (0, 1, 2, 3)]


def test_text_of_a_large_job_is_short(tmp_path: Path) -> None:
    result = run(tmp_path, PRODUCTION)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) < 45
    assert "1185 machines more: see --json" in result.stdout
    assert "ranks 0-9536 by 64" in result.stdout


def test_text_says_what_an_eviction_would_lose(tmp_path: Path) -> None:
    # With dp 1 every copy lies in the rank's own pipeline, here of two.
    result = run(tmp_path, job(4, 1, {"tp": 1, "pp": 4}))
    assert "the state of every rank" in result.stdout
    assert (
        "Unprotected: the pp group. Evicting ranks 0-3 whole (machines 0-3) leaves no copy of the"
        " state of ranks 0-3: it occupies all machines of the job."
    ) in " ".join(result.stdout.split())
    result = run(tmp_path, job(1, 2, {"tp": 2}))
    assert "Without a backup: ranks 0-1: the job has one machine" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [("name: a\n", "machines: is missing"), ("name: [", "is not valid YAML")],
)
def test_a_wrong_spec_ends_with_code_2_and_a_short_message(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    app = typer.Typer()
    app.command()(plan_command)
    result = CliRunner().invoke(app, [str(path)])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) <= 7


FIG_6 = job(24, 2, {"tp": 2, "pp": 4, "dp": 6, "order": "tp-pp-dp"}, replay={"steps": 5})


def test_replay_of_figure_6(tmp_path: Path) -> None:
    result = run(tmp_path, FIG_6, "--replay", "--faulty", "13", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["m"], found["n"], found["repeats"]) == (4, 6, 8)
    first, second = found["rounds"]
    assert [g["outcome"] for g in first["groups"]].index("failed") == 3
    assert [g["outcome"] for g in second["groups"]].index("failed") == 1
    assert (found["conclusion"], found["evict_machines"]) == ("found", [13])


def test_replay_shows_rounds_and_what_they_conclude(tmp_path: Path) -> None:
    result = run(tmp_path, FIG_6, "--replay", "--faulty", "17, 13")
    assert "Evict: 13, 17." in result.stdout
    assert "round 3, one by one" in result.stdout
    assert "Evict: nobody. not reproduced" in run(tmp_path, FIG_6, "--replay").stdout
    large = run(tmp_path, PRODUCTION, "--replay", "--faulty", "1100")
    assert "Evict: 1100." in large.stdout
    assert "replay.steps is 0" in large.stdout
    assert len(large.stdout.splitlines()) < 90


def test_ladder_follows_modes_and_what_the_job_can_do(tmp_path: Path) -> None:
    asked = job(4, 2, {"dp": 8}, safety={"modes": {"rollback": "approve"}})
    text = " ".join(run(tmp_path, asked, "--ladder").stdout.split())
    assert "checks > reattempt > rollback (if a person agrees) > page" in text
    assert "Never climbed: replay: replay.steps is 0" in text
    found = json.loads(run(tmp_path, FIG_6, "--ladder", "--json").stdout)
    rungs = {row["evidence"]: [r["rung"] for r in row["rungs"]] for row in found["ladder"]}
    assert rungs["a crash without a culprit, or NaN"] == [
        "checks", "reattempt", "rollback", "replay", "page"
    ]  # fmt: skip
    assert found["unavailable"] == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--replay", "--faulty", "24"), "--faulty: '24' is not a machine"),
        (("--replay", "--faulty", "x"), "--faulty: 'x' is not a machine"),
        (("--faulty", "3"), "--replay, which --faulty belongs to"),
        (("--ladder", "--replay"), "Give --ladder alone"),
    ],
)
def test_wrong_options_end_with_code_2(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = run(tmp_path, FIG_6, *options)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("option", ["--replay", "--ladder"])
def test_what_the_layout_tells_needs_no_code(tmp_path: Path, option: str) -> None:
    elsewhere = job(24, 1, {"dp": 24}, command=["python", "not-here.py"])
    assert run(tmp_path, elsewhere, option, "--json").exit_code == 0
    assert run(tmp_path, elsewhere).exit_code == 2


def test_a_rank_alone_is_not_said_to_cost_nothing(tmp_path: Path) -> None:
    table = run(tmp_path, job(1, 1, {"dp": 1})).stdout
    assert "nothing" not in table
    assert "Without a backup: rank 0" in table
