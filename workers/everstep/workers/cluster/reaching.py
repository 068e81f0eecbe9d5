"""The cluster and the Temporal server that a person's environment names."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from everstep.core.errors import InputError

if TYPE_CHECKING:
    from everstep.activities.kube.connection import Connection


@asynccontextmanager
async def cluster() -> AsyncGenerator[Connection]:
    """A connection to the API server that KUBECONFIG names, else to this pod's own.

    Raises:
        InputError: There is none, or what talks to it is not installed.
    """
    try:
        from everstep.activities.kube.connection import connected  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InputError(
            "kubernetes",
            f"is not installed ({error.name})",
            "Install the extra: pip install 'everstep[control,kubernetes]'.",
        ) from error
    async with connected(os.environ.get("KUBECONFIG")) as connection:
        yield connection
