"""The README and the pages beside it name only what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from everstep.core.ladder import Policy
from everstep.core.ladder_table import ladder_rows
from everstep.spec.job import JobSpec

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    "deploy/README.md",
    "docs/changes-and-standbys.md",
    "docs/detection-and-ladder.md",
    "docs/operators-guide.md",
    "docs/scale.md",
    "docs/simulation.md",
    "docs/your-script.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text())
    assert [t for t in targets if not t.startswith("http") and not (folder / t).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_named_modules_and_make_targets_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^    |`)make ([a-z]+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile, target
    for module in re.findall(r"python -m ((?:benchmarks|tests)[\w.]+)", text):
        assert (ROOT / (module.replace(".", "/") + ".py")).exists(), module


def test_the_ladder_that_is_described_is_the_ladder() -> None:
    page = (ROOT / "docs/detection-and-ladder.md").read_text()
    for row in ladder_rows(Policy(8, 0.5, 3)):
        rungs = ", ".join(decision.rung.value for decision in row.climbs)
        assert f"| {row.evidence} | {rungs} |\n" in page


def test_every_field_of_a_spec_has_its_line_of_documentation() -> None:
    def undocumented(model: type, path: str) -> list[str]:
        found: list[str] = []
        for name, field in getattr(model, "model_fields", {}).items():
            if not field.description:
                found.append(f"{path}{name}")
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type):
                    found += undocumented(kind, f"{path}{name}.")
        return found

    assert undocumented(JobSpec, "") == []
