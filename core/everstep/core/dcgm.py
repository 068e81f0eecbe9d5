"""What the vendor's own diagnostics say: `dcgmi diag --json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everstep.core.checks import Answer
from everstep.core.vocabulary import Verdict


def judge_toolkit(text: str) -> Answer:
    """What `dcgmi diag --json` says: faulty if any of its tests failed.

    Versions before 4 name GPUs by `gpu_ids`, later ones by `entity_id`; both are read.
    """
    try:
        tests = list(_toolkit_tests(json.loads(text[text.index("{") : text.rindex("}") + 1])))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Answer(Verdict.UNOBSERVABLE, f"dcgmi cannot be understood: {text.strip()[:200]!r}")
    failed = [f"{name} failed on {who}{why}" for name, who, how, why in tests if how == "fail"]
    if failed:
        return Answer(Verdict.FAULTY, f"dcgmi: {'; '.join(failed[:3])}")
    if not any(status == "pass" for _, _, status, _ in tests):
        return Answer(Verdict.UNOBSERVABLE, "dcgmi ran no test to its end")
    warned = sorted({name for name, _, status, _ in tests if status == "warn"})
    told = f", warnings by {', '.join(warned)}" if warned else ""
    return Answer(Verdict.HEALTHY, f"dcgmi: {len(tests)} results, none failed{told}")


def _toolkit_tests(report: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Name, GPU, status and warning of each result."""
    [diagnostic] = [part for part in report.values() if "test_categories" in part]
    return [
        (
            str(test["name"]),
            f"GPU {result.get('gpu_ids', result.get('entity_id', '?'))}",
            str(result["status"]).lower(),
            _toolkit_warning(result),
        )
        for category in diagnostic["test_categories"]
        for test in category["tests"]
        for result in test["results"]
    ]


def _toolkit_warning(result: Mapping[str, Any]) -> str:
    warnings: Any = result.get("warnings") or ""
    text = warnings if isinstance(warnings, str) else warnings[0].get("warning", "")
    return f" ({text[:160]})" if text else ""
