"""From `--fault` to the folder of a machine, in a real run: and into no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.local import run, write_spec

pytestmark = [pytest.mark.slow, pytest.mark.server]

LOOKS = """
echo "$EVERSTEP_FAULTS" > "$EVERSTEP_OUTPUT_DIR/folder-$RANK"
while [ ! -e "$EVERSTEP_OUTPUT_DIR/found" ]; do
    if ls "$EVERSTEP_FAULTS"/*.json 2> /dev/null; then
        cat "$EVERSTEP_FAULTS"/*.json > "$EVERSTEP_OUTPUT_DIR/partial"
        echo "rank $RANK" >> "$EVERSTEP_OUTPUT_DIR/partial"
        mv "$EVERSTEP_OUTPUT_DIR/partial" "$EVERSTEP_OUTPUT_DIR/found"
    fi
    sleep 0.05
done
"""


def test_a_fault_reaches_the_ranks_of_its_machine(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "looks.sh").write_text(LOOKS)
    spec = write_spec(
        tmp_path, 0, 0, name="looks", command=["sh", "looks.sh"], code={"directory": "code"},
        machines=2, gpus_per_machine=1, parallelism={"dp": 2},
    )  # fmt: skip
    done = run(spec, tmp_path / "run", "nan@0:m1,once")
    assert done.code == 0, done.explain()
    fault, rank, *_ = (done.folder / "output" / "found").read_text().split("rank ")
    assert '"kind": "nan", "once": true' in fault
    assert rank.strip() == "1"
    assert [entry["fault"] for entry in done.state["faults"]] == ["nan@0:m1,once"]
    folders = [(done.folder / "output" / f"folder-{rank}").read_text() for rank in (0, 1)]
    assert [Path(folder.strip()).parent.name for folder in folders] == ["m0", "m1"]
