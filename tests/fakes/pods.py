"""Plays kubelet, DNS and volumes: runs the containers of manifests as processes of this host.

Each pod has a loopback address of its own, so that all can listen on the ports that the manifests
name. Images are left out (all run this interpreter), and what is mounted is a folder whose path
takes the mount's place in variables and arguments.
"""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = dict[str, Any]

PATIENCE_S = 120.0
_ADDRESSES = itertools.count(16)


@dataclass
class Pod:
    """One pod whose container runs.

    Attributes:
        name: Its name.
        node: Its node's.
        address: Where its readiness probe asks.
        process: Its main container.
        log: What that writes.
        probe: Path of its readiness probe.
        port: Port of it.
        grace_s: How long it may take to end.
    """

    name: str
    node: str
    address: str
    process: subprocess.Popen[bytes]
    log: Path
    probe: str
    port: int
    grace_s: float

    def ready(self) -> bool:
        """What a kubelet's readiness probe would say."""
        try:
            url = f"http://{self.address}:{self.port}{self.probe}"
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def wait_ready(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.ready():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline_s, f"{self.name} never got ready"
            time.sleep(0.1)


class Host:
    """This host as a cluster.

    Args:
        folder: For volumes and logs.
        objects: All manifests.
        extra: Variables of every container, beside those of its manifest.
    """

    def __init__(
        self, folder: Path, objects: Sequence[Object], extra: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._objects = {(one["kind"], one["metadata"]["name"]): one for one in objects}
        self._extra = dict(extra or {})
        self._names: dict[str, str] = {}
        self.pods: list[Pod] = []

    def claim(self, name: str) -> Path:
        """The folder of a persistent volume."""
        folder = self._folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def start(self, template: Object, name: str, node: str) -> Pod:
        """Start a pod of this template, its init containers first."""
        address = f"127.0.0.{next(_ADDRESSES)}"
        for service in self._objects.values():
            selector = service.get("spec", {}).get("selector")
            if service["kind"] == "Service" and selector.items() <= _labels(template).items():
                meta = service["metadata"]
                self._names[f"{meta['name']}.{meta['namespace']}.svc"] = address
        spec = template["spec"]
        volumes = {v["name"]: self._volume(v, name) for v in spec["volumes"]}
        fields = {
            "status.podIP": address,
            "status.hostIP": address,
            "spec.nodeName": node,
            "metadata.name": name,
            "metadata.uid": str(uuid.uuid4()),
            "metadata.namespace": "everstep",
        }
        for container in spec.get("initContainers", ()):
            command, environment = self._container(container, volumes, fields)
            subprocess.run(command, env=environment, check=True, timeout=PATIENCE_S)
        (container,) = spec["containers"]
        command, environment = self._container(container, volumes, fields)
        log = self._folder / f"{name}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self._folder,
            )
        probe = container["readinessProbe"]["httpGet"]
        ports = {port["name"]: int(port["containerPort"]) for port in container.get("ports", ())}
        named: int | str = probe["port"]
        port = ports[named] if isinstance(named, str) else named
        asked = probe.get("host", address)
        pod = Pod(
            name,
            node,
            asked,
            process,
            log,
            probe["path"],
            port,
            spec["terminationGracePeriodSeconds"],
        )
        self.pods.append(pod)
        return pod

    def stop(self) -> None:
        """End all pods as a kubelet does: asked first, then killed."""
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.process.terminate()
        for pod in self.pods:
            try:
                pod.process.wait(10)
            except subprocess.TimeoutExpired:
                pod.process.kill()
                pod.process.wait()

    def _container(
        self, container: Object, volumes: Mapping[str, Path], fields: Mapping[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        given: dict[str, str] = {}
        for source in container.get("envFrom", ()):
            given.update(self._objects["ConfigMap", source["configMapRef"]["name"]]["data"])
        for entry in container.get("env", ()):
            where = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            given[entry["name"]] = fields[where] if where else entry["value"]
        mounts = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"]}
        # A place that orders name, too, lies where they name it.
        mounts = {p: f for p, f in mounts.items() if not p.startswith(str(self._folder))}
        given = {name: self._here(value, mounts) for name, value in given.items()}
        command = [self._here(part, mounts) for part in container["command"]]
        for name, value in given.items():
            command = [part.replace(f"$({name})", value) for part in command]
        command = [sys.executable if part == "python" else part for part in command]
        return command, {**_inherited(), **given, **self._extra}

    def _here(self, text: str, mounts: Mapping[str, Path]) -> str:
        for name, address in self._names.items():
            text = text.replace(name, address)
        for mount, folder in mounts.items():
            if text == mount or text.startswith(f"{mount}/"):
                return f"{folder}{text.removeprefix(mount)}"
        return text

    def _volume(self, volume: Object, pod: str) -> Path:
        if claim := volume.get("persistentVolumeClaim"):
            return self.claim(str(claim["claimName"]))
        folder: Path = self._folder / "volumes" / pod / str(volume["name"])
        if host := volume.get("hostPath"):
            return Path(host["path"])
        folder.mkdir(parents=True)
        for kind, key in (("Secret", "secret"), ("ConfigMap", "configMap")):
            source = volume.get(key)
            if source is None:
                continue
            found = self._objects.get((kind, source.get("secretName") or source.get("name")))
            assert found is not None or source.get("optional"), f"{pod} would wait for {source}"
            found = found or {}
            coded: dict[str, str] = {**found.get("binaryData", {})}
            coded.update(found.get("data", {}) if kind == "Secret" else {})
            for name, content in coded.items():
                (folder / name).write_bytes(base64.b64decode(content))
        return folder


@contextmanager
def hosting(
    folder: Path, objects: Sequence[Object], extra: Mapping[str, str] | None = None
) -> Generator[Host]:
    """This host as a cluster, until the end of the block."""
    host = Host(folder, objects, extra)
    try:
        yield host
    finally:
        host.stop()


def templates(objects: Sequence[Object], component: str) -> Iterator[tuple[str, Object, int]]:
    """Name, template and number of the pods of a component, one entry a set."""
    for one in objects:
        name, spec = one["metadata"]["name"], one.get("spec", {})
        if one["kind"] == "JobSet":
            sets = [
                (f"{name}-{job['name']}", job["template"]["spec"]["template"], "parallelism", job)
                for job in spec["replicatedJobs"]
            ]
            found = [(n, t, job["template"]["spec"][size]) for n, t, size, job in sets]
        elif "replicas" in spec:
            found = [(name, spec["template"], spec["replicas"])]
        else:
            continue
        for set_name, template, size in found:
            if _labels(template)["app.kubernetes.io/component"] == component:
                yield set_name, template, int(size)


def _labels(template: Object) -> dict[str, str]:
    labels: dict[str, str] = template["metadata"]["labels"]
    return labels


def _inherited() -> dict[str, str]:
    """What an image would bring; nothing of ours or of Temporal's."""
    private = ("EVERSTEP_", "TEMPORAL_", "KUBERNETES_")
    return {name: value for name, value in os.environ.items() if not name.startswith(private)}
