"""A code version on its way into pods."""

from __future__ import annotations

import gzip
import io
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from everstep.agent.code import digest
from everstep.core.errors import InputError, PermanentError
from everstep.workers.cluster.parcel import pack, unpack


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "version"
    (folder / "deep" / "__pycache__").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "deep" / "run.sh").chmod(0o755)
    (folder / "deep" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "link").symlink_to("train.py")
    return folder


def test_arrives_as_it_was_sent(version: Path, tmp_path: Path) -> None:
    there = tmp_path / "pod" / "code"
    unpack(pack(version), there, digest(version))
    assert digest(there) == digest(version)
    assert not (there / "deep" / "__pycache__").exists()
    assert (there / "link").readlink() == Path("train.py")


def test_the_same_code_gives_the_same_bytes(version: Path) -> None:
    first = pack(version)
    (version / "train.py").touch()
    assert pack(version) == first


def test_a_pod_that_starts_again_keeps_what_it_has(version: Path, tmp_path: Path) -> None:
    there = tmp_path / "code"
    unpack(pack(version), there, digest(version))
    before = (there / "train.py").stat().st_ino
    unpack(b"not read", there, digest(version))
    assert (there / "train.py").stat().st_ino == before


def test_what_was_cut_off_is_made_anew(version: Path, tmp_path: Path) -> None:
    there = tmp_path / "code"
    there.mkdir()
    (there / "train.py").write_text("half")
    unpack(pack(version), there, digest(version))
    assert digest(there) == digest(version)


def test_other_code_is_refused(version: Path, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"is .*, not 000000000000"):
        unpack(pack(version), tmp_path / "code", "000000000000")
    assert not (tmp_path / "code").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/outside"])
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    there = tmp_path / "pod" / "code"
    with pytest.raises(PermanentError):
        unpack(gzip.compress(written.getvalue()), there, "000000000000")
    assert not (tmp_path / "pod" / "outside").exists()


def test_what_no_configmap_holds_is_refused_here(tmp_path: Path) -> None:
    folder = tmp_path / "version"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(random.Random(1).randbytes(1_000_000))  # noqa: S311
    with pytest.raises(InputError, match="--code-at"):
        pack(folder)


def test_the_program_of_a_pod_says_what_is_wrong(version: Path, tmp_path: Path) -> None:
    parcel = tmp_path / "code.tar.gz"
    parcel.write_bytes(pack(version)[:60])
    command = [sys.executable, "-m", "everstep.workers.cluster.parcel"]
    arguments = [str(parcel), str(tmp_path / "code"), digest(version)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot be unpacked" in done.stderr
    assert "Traceback" not in done.stderr
