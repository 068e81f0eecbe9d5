"""A job on its way into a cluster: from a person's spec to what is applied."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from everstep.agent import code
from everstep.core.errors import InputError
from everstep.core.memory import CodeVersion
from everstep.core.orders import PrepareOrder
from everstep.spec.job import JobSpec
from everstep.spec.load import read_spec
from everstep.workers.cluster import places
from everstep.workers.cluster.parcel import Parcel, pack
from everstep.workers.cluster.pod import Submission
from everstep.workers.local.code import take_version
from everstep.workflows.messages import JobInput


@dataclass(frozen=True, slots=True)
class Target:
    """Where a job goes.

    Attributes:
        namespace: Of the cluster.
        controller_image: Image of the analyzer.
        code_at: Where the code lies in every training pod already; empty to send it along.
        image: Image of training pods, instead of the spec's.
    """

    namespace: str
    controller_image: str
    code_at: str = ""
    image: str | None = None


def submission(spec_file: Path, target: Target) -> Submission:
    """Read a spec and its code as a cluster needs them.

    Raises:
        InputError: Something in it is wrong, or means nothing in a cluster.
    """
    spec = read_spec(spec_file)
    if target.image is not None:
        pods = spec.pods.model_copy(update={"image": target.image})
        spec = spec.model_copy(update={"pods": pods})
    places.object_name(spec.name)
    _check(spec, spec_file)
    if target.code_at:
        version, directory = _in_place(spec, target.code_at)
        parcels: list[Parcel] = []
    else:
        parcels = [_taken(spec, spec_file)]
        version = parcels[0].version
        directory = places.code_folder(version)
    before = _taken_before(spec, spec_file)
    if before is not None and before.version == version:
        # There is nothing to go back to.
        before = None
    parcels += [] if before is None else [before]
    return Submission(
        spec=spec,
        namespace=target.namespace,
        version=version,
        code_directory=directory,
        parcels=tuple(parcels),
        controller_image=target.controller_image,
        previous=None if before is None else _sent(before),
    )


def job_input(given: Submission, from_scratch: bool) -> JobInput:
    """What the job's workflow is started with; the environment may hold secrets, and stays out."""
    spec = given.spec.model_copy(update={"environment": {}})
    earlier = () if given.previous is None else (given.previous,)
    return JobInput(spec, given.version, given.code_directory, from_scratch, earlier)


def _check(spec: JobSpec, spec_file: Path) -> None:
    """Refuse what means something on one host only."""
    if spec.pods.image is None:
        raise InputError(
            f"{spec_file}: pods.image",
            "is not given, and a pod needs one",
            "Name the training image, with everstep[agent] in it (deploy/Dockerfile makes one).",
        )
    storage = spec.checkpoint.storage
    if storage is not None and "://" not in storage.path and not storage.path.startswith("/"):
        raise InputError(
            f"{spec_file}: checkpoint.storage.path",
            f"{storage.path} is relative to a file that pods do not have",
            f"Give a URL, or a folder on the volume: {places.VOLUME}/checkpoints.",
        )


def _in_place(spec: JobSpec, directory: str) -> tuple[str, str]:
    if not directory.startswith("/"):
        fix = "Give the folder as a training pod sees it, from the root."
        raise InputError("--code-at", f"{directory} is not absolute", fix)
    # What lies there is not here to be read: image and place stand for it.
    named = f"{spec.pods.image} {directory}"
    return hashlib.sha256(named.encode()).hexdigest()[: code.VERSION_DIGITS], directory


def _sent(parcel: Parcel) -> CodeVersion:
    return CodeVersion(parcel.version, places.code_folder(parcel.version))


def _taken_before(spec: JobSpec, spec_file: Path) -> Parcel | None:
    """The version that the spec names as the one before, packed; None without one."""
    if spec.code.previous is None:
        return None
    before = "directory" if spec.code.git is None else "ref"
    source = spec.code.model_copy(update={before: spec.code.previous})
    return _taken(spec.model_copy(update={"code": source}), spec_file, "code.previous")


def _taken(spec: JobSpec, spec_file: Path, field: str = "code") -> Parcel:
    """The code that the spec names, packed, if its script can run."""
    if spec.code.directory is not None:
        directory = (spec_file.parent / spec.code.directory).absolute()
        if not directory.is_dir():
            where = "code.directory" if field == "code" else field
            fix = "Give a folder here; or say where it lies in every pod: --code-at FOLDER."
            raise InputError(f"{spec_file}: {where}", f"{directory} is no folder", fix)
        source = spec.code.model_copy(update={"directory": str(directory)})
        spec = spec.model_copy(update={"code": source})
    with tempfile.TemporaryDirectory(prefix="everstep-") as store:
        version, taken = take_version(spec, Path(store))
        report = code.prepare(PrepareOrder(str(taken), version), "here", spec.command)
        if report.problem:
            problem = report.problem.replace(f"{taken}/", "")
            raise InputError(f"{spec_file}: {field}", problem, "Correct it, and submit again.")
        return Parcel(version, pack(taken))
