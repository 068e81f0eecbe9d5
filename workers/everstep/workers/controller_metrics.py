"""Prometheus metrics of a cluster's controllers: what Temporal's SDK counts of their work.

The SDK serves them to whoever asks, so it does so on loopback alone, and what listens to others is
our own server, which wants a token. The SDK's names are kept: dashboards for them are at hand.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import urllib.request
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from everstep.core.errors import InputError
from everstep.workers.local import ports
from everstep.workers.metrics import MetricsServer
from everstep.workers.settings import PREFIX, ControllerSettings

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
ANSWER_PATIENCE_S = 2.0
TOKEN_VARIABLE = f"{PREFIX}METRICS_TOKEN"
TOKEN_FILE = ".metrics-token"  # noqa: S105 - where it lies
TOKEN_BYTES = 32


class SdkMetrics(Collector):
    """What a runtime of Temporal's SDK counts, asked for anew each time.

    Args:
        port: Where it tells on loopback.
    """

    def __init__(self, port: int) -> None:
        self._url = f"http://{LOOPBACK}:{port}/metrics"

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now."""
        with urllib.request.urlopen(self._url, timeout=ANSWER_PATIENCE_S) as answer:  # noqa: S310
            text = answer.read().decode()
        yield from text_string_to_metric_families(text)


def counted(given: ControllerSettings) -> tuple[Runtime, int] | None:
    """A runtime that counts its work, with the port where it tells; None where nobody asks.

    A controller of one run has none: of that, the analyzer's metrics tell.
    """
    if given.metrics_port is None or given.runs_directory is None:
        return None
    port = ports.free_port(LOOPBACK)
    told = PrometheusConfig(
        f"{LOOPBACK}:{port}", counters_total_suffix=True, durations_as_seconds=True
    )
    return Runtime(telemetry=TelemetryConfig(metrics=told)), port


def serve(port: int, given: ControllerSettings, variables: Mapping[str, str]) -> MetricsServer:
    """Serve to whoever has the token, until the process ends.

    Args:
        port: Where the runtime tells.
        given: Settings of the process.
        variables: In which an installation may give a token of its own.

    Raises:
        InputError: The port cannot be listened on, or the token be neither read nor written.
    """
    try:
        token = variables.get(TOKEN_VARIABLE) or shared_token(given.folder() / TOKEN_FILE)
        return MetricsServer(SdkMetrics(port), (given.host, given.metrics_port or 0), token)
    except OSError as error:
        where = f"{PREFIX}METRICS_PORT {given.metrics_port}, {given.folder() / TOKEN_FILE}"
        fix = f"Give a port that is free, and a folder to write to, or {TOKEN_VARIABLE}."
        raise InputError(where, str(error), fix) from error


def shared_token(file: Path) -> str:
    """The token in a file, which is made by whoever comes first of all that share it.

    Raises:
        OSError: It can be neither read nor written.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
        # A scraper reads it that is in the group of the volume.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        with os.fdopen(descriptor, "w") as written:
            written.write(secrets.token_hex(TOKEN_BYTES))
        # Unlike a renaming, a link never takes the place of another's.
        with contextlib.suppress(FileExistsError):
            os.link(partial, file)
        partial.unlink()
    return file.read_text(encoding="ascii").strip()
