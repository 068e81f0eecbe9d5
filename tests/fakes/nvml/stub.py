"""Builds the stand-in for libnvidia-ml.so.1 and scripts what it answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml.c"


def build(folder: Path) -> Path:
    """Compile the library into a folder; returns the folder, for LD_LIBRARY_PATH."""
    target = folder / "libnvidia-ml.so.1"
    command = ["gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-O1"]
    subprocess.run([*command, "-o", str(target), str(SOURCE)], check=True)
    return folder


class FakeGpus:
    """What the library answers; changed while it is in use.

    Args:
        library: Folder of the built library.
        state: The file that scripts it.
    """

    def __init__(self, library: Path, state: Path) -> None:
        self._state = state
        self._said: dict[str, float] = {}
        self._xids = 0
        self.environment = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML_STATE": str(state)}
        self.say()

    def say(self, **changes: float) -> None:
        """Change answers; `gpu3_temperature=93` is written `gpu3.temperature 93`."""
        for key, value in changes.items():
            head, _, rest = key.partition("_")
            self._said[f"{head}.{rest}" if head.startswith("gpu") and rest else key] = value
        self._write()

    def xid(self, gpu: int, code: int) -> None:
        """Let an Xid happen."""
        self._xids += 1
        self._said[f"xid.{self._xids}"] = gpu * 1000 + code
        self._write()

    def _write(self) -> None:
        text = "".join(f"{key} {value:g}\n" for key, value in self._said.items())
        new = self._state.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self._state)  # noqa: PTH105 - the library reads at any moment
