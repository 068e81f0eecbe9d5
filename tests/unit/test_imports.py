"""What is read from sources to be imported ahead."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from everstep.agent.imports import Import, outside_imports, script_of


def write(root: Path, sources: Mapping[str, str]) -> None:
    for name, source in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(source))


def test_follows_the_scripts_own_modules(tmp_path: Path) -> None:
    sources = {
        "train.py": """
            from __future__ import annotations
            import json, numpy.linalg as la
            from torch.distributed import fsdp, init_process_group as init
            from model import net
            import helpers, deep.down.there
            try:
                import flash_attn
            except ImportError:
                import slow_attn
            if __name__ == "__main__":
                import argparse
            """,
        "model/__init__.py": "from . import net\nfrom .layers import *\n",
        "model/net.py": "import einops\nfrom ..nothing import x\nimport train\n",
        "model/layers.py": "from math import pi\n",
        "helpers.py": "import yaml\nimport helpers\n",
        "deep/__init__.py": "import bz2\n",
        "deep/down/there.py": "import lzma\n",
        "unused.py": "import wandb\n",
    }
    write(tmp_path, sources)
    found = outside_imports(tmp_path / "train.py", tmp_path)
    assert sorted(found, key=lambda item: item.module) == [
        Import("__future__", ("annotations",)),
        Import("argparse"),
        Import("bz2"),
        Import("einops"),
        Import("flash_attn"),
        Import("json"),
        Import("lzma"),
        Import("math", ("pi",)),
        Import("numpy.linalg"),
        Import("slow_attn"),
        Import("torch.distributed", ("fsdp", "init_process_group")),
        Import("yaml"),
    ]


def test_leaves_out_what_does_not_run_on_import(tmp_path: Path) -> None:
    source = """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import a
        else:
            import b
        def f():
            import c
        class C:
            import d
        with open("x") as x:
            import e
        """
    write(tmp_path, {"train.py": source})
    found = [item.module for item in outside_imports(tmp_path / "train.py", tmp_path)]
    assert found == ["typing", "b", "e"]


def test_what_cannot_be_read_adds_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"broken.py": "import json\nx = (\n", "train.py": "import broken, csv\n"})
    (tmp_path / "nul.py").write_bytes(b"import json\0")
    assert outside_imports(tmp_path / "train.py", tmp_path) == [Import("csv")]
    for name in ("broken.py", "nul.py", "missing.py"):
        assert outside_imports(tmp_path / name, tmp_path) == []


def test_a_script_in_a_folder_finds_its_neighbours_and_the_root(tmp_path: Path) -> None:
    sources = {"scripts/train.py": "import near, far\n", "scripts/near.py": "import csv\n"}
    write(tmp_path, {**sources, "far.py": "import json\n"})
    found = outside_imports(tmp_path / "scripts/train.py", tmp_path)
    assert set(found) == {Import("csv"), Import("json")}


def test_the_file_behind_a_module(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__main__.py": "", "pkg/train.py": ""})
    assert script_of("pkg", tmp_path) == tmp_path / "pkg/__main__.py"
    assert script_of("pkg.train", tmp_path) == tmp_path / "pkg/train.py"
