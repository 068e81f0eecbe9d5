"""Prometheus metrics of agents and analyzers: off unless a port is given, never without a token.

`GET /metrics` wants `Authorization: Bearer TOKEN`; the token follows from the job's secret and
lies, readable by its owner only, in the run's folder, beside a target file a process:

    scrape_configs:
      - job_name: everstep
        authorization: {credentials_file: RUN/metrics/token}
        file_sd_configs: [{files: [RUN/metrics/*.json]}]
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as LateError
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from everstep.agent.machine import Machine
from everstep.agent.telemetry import TelemetryClient
from everstep.core.errors import InputError
from everstep.core.model import RankProgress
from everstep.core.senses.inspection import Inspection
from everstep.core.vocabulary import Spent, Symptom
from everstep.workers.account import Account
from everstep.workers.local.folder import RunFolder
from everstep.workers.settings import PREFIX, WorkerSettings
from everstep.workers.telemetry import TelemetryServer

logger = logging.getLogger(__name__)

ANSWER_PATIENCE_S = 5.0

Inspect = Callable[[], Iterable[Inspection]]


class AgentMetrics(Collector):
    """What an agent knows of its machine and its ranks.

    Args:
        machine: The machine.
        telemetry: What its ranks said.
        alerts: How many it raised, by symptom.
        inspect: How its senses stand.
    """

    def __init__(
        self,
        machine: Machine,
        telemetry: TelemetryClient,
        alerts: Mapping[Symptom, int],
        inspect: Inspect,
    ) -> None:
        self._machine = machine
        self._telemetry = telemetry
        self._alerts = alerts
        self._inspect = inspect

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now."""
        newest, figures = self._telemetry.newest(), self._telemetry.figures()
        yield _of_ranks("rank_step", "Newest step that a rank finished.", newest, lambda p: p.step)
        yield _of_ranks("rank_loss", "Loss that a rank reported last.", figures, lambda p: p.loss)
        yield _of_ranks(
            "rank_grad_norm",
            "Gradient norm that a rank reported last.",
            figures,
            lambda p: p.grad_norm,
        )
        phases = GaugeMetricFamily(
            "everstep_rank_phase", "What a rank does now.", labels=["rank", "phase"]
        )
        for progress in newest:
            phases.add_metric([str(progress.rank), progress.phase.value], 1)
        yield phases
        memory = "Memory that checkpoints of ranks take on this machine."
        yield GaugeMetricFamily(
            "everstep_checkpoint_memory_bytes", memory, self._machine.memory_bytes
        )
        lags = GaugeMetricFamily(
            "everstep_backup_lag_steps", "Saved steps that have no backup yet.", labels=["rank"]
        )
        for rank, steps in self._machine.backup_lags().items():
            lags.add_metric([str(rank)], steps)
        yield lags
        yield _alerts(self._alerts)
        yield _senses(self._inspect())


class AnalyzerMetrics(Collector):
    """What the analyzer knows of the job.

    Args:
        telemetry: What all agents said.
        alerts: How many it raised, by symptom.
        account: Where the job's time went.
    """

    def __init__(
        self, telemetry: TelemetryServer, alerts: Mapping[Symptom, int], account: Account
    ) -> None:
        self._telemetry = telemetry
        self._alerts = alerts
        self._account = account

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now."""
        board, senses = self._telemetry.board, self._telemetry.senses
        yield GaugeMetricFamily("everstep_attempt", "Newest attempt.", board.attempt)
        if board.newest is not None:
            step = "Newest step that all ranks have finished."
            yield GaugeMetricFamily("everstep_step", step, board.newest.step)
        if senses.step_s is not None:
            yield GaugeMetricFamily(
                "everstep_step_seconds", "Time that the newest step took.", senses.step_s
            )
        agents = len(self._telemetry.watch.machines())
        yield GaugeMetricFamily("everstep_agents", "Agents that are alive.", agents)
        yield _alerts(self._alerts)
        yield _senses(senses.inspections())
        yield from _ledger(self._account)


def _of_ranks(
    name: str,
    text: str,
    said: Iterable[RankProgress],
    figure: Callable[[RankProgress], float | None],
) -> Metric:
    metric = GaugeMetricFamily(f"everstep_{name}", text, labels=["rank"])
    for progress in said:
        value = figure(progress)
        if value is not None:
            metric.add_metric([str(progress.rank)], value)
    return metric


def _ledger(account: Account) -> Iterable[Metric]:
    spent = account.spent()
    wall_s = sum(spent.values())
    if wall_s <= 0:
        return
    yield GaugeMetricFamily(
        "everstep_ettr_ratio",
        "Time that advanced training over all time since the job was started.",
        spent[Spent.PRODUCTIVE] / wall_s,
    )
    yield GaugeMetricFamily(
        "everstep_ettr_hour_ratio", "The same over the newest hour.", account.recent_ratio()
    )
    # No counter: what a moment was spent on may be known only later.
    times = GaugeMetricFamily(
        "everstep_time_seconds",
        "Where the time since the job was started went; the classes add up to it.",
        labels=["spent"],
    )
    for kind, seconds in spent.items():
        times.add_metric([kind.value], seconds)
    yield times


def _alerts(counts: Mapping[Symptom, int]) -> Metric:
    metric = CounterMetricFamily("everstep_alerts", "Alerts raised.", labels=["symptom"])
    for symptom in Symptom:
        metric.add_metric([symptom.value], counts.get(symptom, 0))
    return metric


def _senses(inspections: Iterable[Inspection]) -> Metric:
    metric = GaugeMetricFamily(
        "everstep_sense",
        "1 for what the last look at something said: healthy, faulty, or unobservable.",
        labels=["item", "subject", "verdict"],
    )
    for found in inspections:
        metric.add_metric([found.item, found.subject, found.verdict.value], 1)
    return metric


def token_of(secret: bytes, job: str) -> str:
    """What a scraper has to show; the job's secret cannot be told from it."""
    return hmac.new(secret, f"everstep metrics of {job}".encode(), hashlib.sha256).hexdigest()


def serve(collector: Collector, given: WorkerSettings, job: str, process: str) -> None:
    """Serve metrics until the process ends, if its settings say so, and tell Prometheus where.

    Raises:
        InputError: The port cannot be listened on.
    """
    if given.metrics_port is None:
        return
    token = token_of(given.secret(), job)
    try:
        server = MetricsServer(collector, (given.host, given.metrics_port), token)
    except OSError as error:
        where = f"{PREFIX}METRICS_PORT {given.metrics_port}"
        raise InputError(where, str(error), "Give each process a port of its own, or 0.") from error
    # Pods of one volume share a group, and Prometheus is in it.
    mode = 0o640 if given.cluster == "kubernetes" else 0o600
    server.announce(RunFolder(given.run_directory).metrics, job, process, token, mode)


class MetricsServer:
    """Serves a collector's metrics, each rendered in the event loop that it belongs to.

    Args:
        collector: What to tell.
        address: Host and port to listen on; port 0 takes any that is free.
        token: What a scraper has to show.

    Raises:
        OSError: The address cannot be listened on.
    """

    def __init__(self, collector: Collector, address: tuple[str, int], token: str) -> None:
        registry = CollectorRegistry()
        registry.register(collector)
        loop = asyncio.get_running_loop()

        def render() -> bytes:
            async def now() -> bytes:
                return generate_latest(registry)

            return asyncio.run_coroutine_threadsafe(now(), loop).result(ANSWER_PATIENCE_S)

        self._server = ThreadingHTTPServer(address, _handler(render, token))
        self._server.daemon_threads = True
        self.host, self.port = address[0], self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def announce(self, folder: Path, job: str, process: str, token: str, mode: int = 0o600) -> None:
        """Write the token, readable by whom the mode says, and the target into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        labels = {"everstep_job": job, "process": process}
        target = {"targets": [f"{self.host}:{self.port}"], "labels": labels}
        _write(folder / "token", token, mode)
        _write(folder / f"{process}.json", json.dumps([target]), 0o644)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


def _write(path: Path, text: str, mode: int) -> None:
    # Pods that share a folder have process ids of their own, and so the same ones.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    partial.replace(path)


def _handler(render: Callable[[], bytes], token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = ANSWER_PATIENCE_S
        # Says nothing of the interpreter to strangers.
        server_version = sys_version = "everstep"

        def do_GET(self) -> None:
            if not hmac.compare_digest(
                self.headers.get("Authorization", "").encode(), f"Bearer {token}".encode()
            ):
                self._answer(HTTPStatus.UNAUTHORIZED, b"", {"WWW-Authenticate": "Bearer"})
            elif self.path != "/metrics":
                self._answer(HTTPStatus.NOT_FOUND, b"")
            else:
                try:
                    self._answer(HTTPStatus.OK, render())
                except LateError:
                    self._answer(HTTPStatus.SERVICE_UNAVAILABLE, b"")

        def log_message(self, format: str, *args: object) -> None:
            logger.debug(format, *args)

        def _answer(
            self, status: HTTPStatus, body: bytes, headers: Mapping[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    return Handler
