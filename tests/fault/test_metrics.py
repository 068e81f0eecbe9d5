"""Metrics over real sockets: for whoever has the token, of what is so at that moment."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fault.machines import HOST, SECRET, Rig, config_of
from tests.unit.test_ledger import incident

from everstep.agent import link
from everstep.agent.telemetry import TelemetryClient
from everstep.core.liveness import AgentWatch
from everstep.core.model import RankProgress, RanksStarted, StepSeen
from everstep.core.progress import StepBoard
from everstep.core.senses.inspection import unobservable
from everstep.core.senses.job import JobLimits, JobSenses
from everstep.core.senses.silence import SilenceLimits
from everstep.core.vocabulary import Phase, Spent, Symptom
from everstep.workers import metrics
from everstep.workers.account import Account
from everstep.workers.telemetry import TelemetryServer

Samples = dict[tuple[str, tuple[str, ...]], float]


def unused() -> asyncio.Future[link.AsyncLink]:
    raise AssertionError("nobody runs it")


def scrape(server: metrics.MetricsServer, token: str, path: str = "/metrics") -> Samples:
    request = urllib.request.Request(f"http://{HOST}:{server.port}{path}")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - ours
        text = answer.read().decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def refusal(server: metrics.MetricsServer, token: str, path: str = "/metrics") -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(server, token, path)
    with refused.value as error:
        return error.code


async def test_an_agents_metrics_are_for_those_who_have_the_token(tmp_path: Path) -> None:
    telemetry = TelemetryClient(unused, "m0", 1, 1.0)
    async with Rig(config_of(tmp_path, ("bash", "-c", "sleep 1000"))) as rig:
        said = RankProgress("m0", 1, 5, 7, time.time(), Phase.STEP, loss=2.5, grad_norm=0.5)
        telemetry.put_start(RanksStarted("m0", 1, (5,), 0, time.time()))
        telemetry.put(said)
        telemetry.put(RankProgress("m0", 1, 5, 8, time.time(), Phase.EVALUATION))
        collector = metrics.AgentMetrics(
            rig.machine,
            telemetry,
            {Symptom.GPU_UNAVAILABLE: 2},
            lambda: [unobservable("gpu.driver", "NVML", "none")],
        )
        server = metrics.MetricsServer(collector, (HOST, 0), "right")
        server.announce(tmp_path / "metrics", "toy", "agent-m0", "right")
        try:
            assert await asyncio.to_thread(refusal, server, "") == 401
            assert await asyncio.to_thread(refusal, server, "wrong") == 401
            assert await asyncio.to_thread(refusal, server, "right", "/else") == 404
            found = await asyncio.to_thread(scrape, server, "right")
        finally:
            server.close()
    assert found["everstep_rank_step", ("5",)] == 8
    assert found["everstep_rank_loss", ("5",)] == 2.5
    assert found["everstep_rank_grad_norm", ("5",)] == 0.5
    assert found["everstep_rank_phase", ("evaluation", "5")] == 1
    assert found["everstep_checkpoint_memory_bytes", ()] == 0
    assert found["everstep_alerts_total", ("gpu_unavailable",)] == 2
    assert found["everstep_sense", ("gpu.driver", "NVML", "unobservable")] == 1
    (target,) = json.loads((tmp_path / "metrics/agent-m0.json").read_text())
    assert target["targets"] == [f"{HOST}:{server.port}"]
    token = tmp_path / "metrics/token"
    assert (token.read_text(), token.stat().st_mode & 0o777) == ("right", 0o600)


async def test_an_analyzers_metrics_are_the_jobs() -> None:
    seen: list[StepSeen] = []
    senses = JobSenses(JobLimits(SilenceLimits(3.0, 10.0, 600.0, 600.0), 5.0, 0.1))
    telemetry = TelemetryServer(
        StepBoard(1, 30.0), AgentWatch(5.0, 0.1), senses, seen.append, lambda alerts: None
    )
    telemetry.watch.heard("m0", time.time())
    server = metrics.MetricsServer(
        metrics.AnalyzerMetrics(telemetry, {Symptom.JOB_HANG: 1}, Account()), (HOST, 0), "right"
    )
    try:
        before = await asyncio.to_thread(scrape, server, "right")
        for step in range(5):
            telemetry.board.note(3, 0, step, 2.0 * step)
            progress = RankProgress("m0", 3, 0, step, 2.0 * step, Phase.STEP, loss=1.0)
            senses.note(progress, 2.0 * step)
        after = await asyncio.to_thread(scrape, server, "right")
    finally:
        server.close()
    assert ("everstep_step", ()) not in before
    assert before["everstep_sense", ("job.loss", "job", "unobservable")] == 1
    assert (after["everstep_attempt", ()], after["everstep_step", ()]) == (3, 4)
    assert after["everstep_step_seconds", ()] == 2.0
    assert after["everstep_agents", ()] == 1
    assert after["everstep_alerts_total", ("job_hang",)] == 1
    assert after["everstep_sense", ("job.loss", "job", "healthy")] == 1
    assert after["everstep_sense", ("job.pace", "job", "unobservable")] == 1
    assert ("everstep_ettr_ratio", ()) not in after


async def test_where_the_jobs_time_went() -> None:
    """Steps of a second, one of which stands still for a checkpoint, then a lost machine."""
    senses = JobSenses(JobLimits(SilenceLimits(3.0, 10.0, 600.0, 600.0), 5.0, 0.1))
    telemetry = TelemetryServer(
        StepBoard(1, 30.0), AgentWatch(5.0, 0.1), senses, lambda seen: None, lambda alerts: None
    )
    from_s = time.time() - 100.0
    steps = [StepSeen(1, step, from_s + 9.0 + step) for step in range(1, 41)]
    steps[-1] = replace(steps[-1], stalled_s=0.5)
    account = Account(steps)
    open_one = incident(
        1, (from_s + 49.0, Spent.DETECT), (from_s + 50.0, Spent.LOCATE), (from_s + 60.0, Spent.HELD)
    )
    server = metrics.MetricsServer(
        metrics.AnalyzerMetrics(telemetry, {}, account), (HOST, 0), "right"
    )
    try:
        account.told(from_s, [open_one], active=True)
        held = await asyncio.to_thread(scrape, server, "right")
        account.step(StepSeen(2, 41, from_s + 90.0))
        account.told(from_s, [open_one], active=False)
        after = await asyncio.to_thread(scrape, server, "right")
    finally:
        server.close()

    def spent(found: Samples) -> dict[str, float]:
        name = "everstep_time_seconds"
        return {labels[0]: value for (this, labels), value in found.items() if this == name}

    expected = {"start": 10.0, "productive": 38.5, "checkpoint": 0.5, "detect": 1.0, "locate": 10.0}
    assert {kind: round(spent(held)[kind], 3) for kind in expected} == expected
    assert spent(held)["held"] == pytest.approx(40.0, abs=10.0)
    assert sum(spent(held).values()) == pytest.approx(100.0, abs=10.0)
    assert held["everstep_ettr_ratio", ()] == pytest.approx(0.385, abs=0.05)
    assert held["everstep_ettr_hour_ratio", ()] == pytest.approx(0.385, abs=0.05)
    assert spent(after)["held"] == pytest.approx(29.0)
    assert spent(after)["productive"] == pytest.approx(39.5)


def test_the_token_is_of_the_secret_and_the_job() -> None:
    tokens = {metrics.token_of(s, j) for s in (SECRET, b"other") for j in ("a", "b")}
    assert len(tokens) == 4
    assert not any(SECRET.hex() in token for token in tokens)
