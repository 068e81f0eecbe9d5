from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n"
PEER = "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:5\n"


def everstep(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "everstep.cli.main", "classify", *arguments]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def objects(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_is_one_object_a_file(tmp_path: Path) -> None:
    (tmp_path / "kern").write_text("quiet\n" + XID)
    (tmp_path / "rank").write_text(PEER)
    kernel, rank = objects(everstep("--json", str(tmp_path / "kern"), str(tmp_path / "rank")))
    assert kernel == {
        "file": str(tmp_path / "kern"),
        "symptom": "gpu_unavailable",
        "label": "gpu_hardware",
        "first_action": "evict_machine",
        "confidence": 0.9,
        "culprit_rank": None,
        "lines": [1],
        "reason": "xid 79: the GPU has fallen off the bus",
    }
    assert (rank["symptom"], rank["culprit_rank"]) == ("network_error", None)


def test_files_of_a_job_are_judged_as_one(tmp_path: Path) -> None:
    (tmp_path / "kern").write_text(XID)
    (answer,) = objects(everstep("--json", "--job", "-", str(tmp_path / "kern"), stdin=PEER))
    assert answer["file"] == str(tmp_path / "kern")
    assert answer["first_action"] == "evict_machine"


def test_what_is_known_beside_the_text_counts() -> None:
    text = "Fatal Python error: Segmentation fault\n"
    (before,) = objects(everstep("--json", "-", stdin=text))
    (after,) = objects(everstep("--json", "--first-run", "-", stdin=text))
    assert before["first_action"] == "stop_time_checks"
    assert after["first_action"] == "rollback_code"


def test_people_see_the_deciding_line() -> None:
    result = everstep("-", stdin=XID)
    assert result.returncode == 0
    assert "evict_machine" in result.stdout
    assert "0  NVRM: Xid (PCI:0000:3b:00): 79" in result.stdout


def test_packed_and_wide_texts_are_read(tmp_path: Path) -> None:
    text = "quiet\n" + XID
    (tmp_path / "kern.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "wide").write_bytes(text.encode("utf-16"))
    (tmp_path / "wide.gz").write_bytes(gzip.compress(text.encode("utf-16")))
    answers = objects(everstep("--json", *map(str, sorted(tmp_path.iterdir()))))
    assert [(a["first_action"], a["lines"]) for a in answers] == [("evict_machine", [1])] * 3


def test_what_cannot_be_read_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(XID.encode())[:-9])
    (tmp_path / "trace.pkl").write_bytes(bytes(range(256)) * 64)
    # Nobody writes to it: it would be waited for without end.
    os.mkfifo(tmp_path / "pipe")
    wrong = [[str(tmp_path / name)] for name in ("none", "", "cut.gz", "trace.pkl", "pipe")]
    for arguments in (*wrong, ["-", "-"]):
        result = everstep(*arguments)
        assert result.returncode == 2, arguments
        assert "Traceback" not in result.stderr
    assert everstep("--kind", "poem", "-").returncode == 2
