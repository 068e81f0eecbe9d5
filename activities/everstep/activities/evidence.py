"""Evidence of a run, kept once under its digest: in a folder, or wherever fsspec reaches."""

# fsspec is not annotated.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import uuid
from typing import Any

from fsspec.core import url_to_fs

from everstep.core.errors import PermanentError, TransientError

_DIGEST_CHARS = 64


class EvidenceStore:
    """Bytes by digest; everything here blocks.

    Args:
        url: The folder, as fsspec writes it; made when missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        found: Any = url_to_fs(url)
        self._files, self._root = found[0], str(found[1]).rstrip("/")

    def put(self, data: bytes) -> str:
        """Keep these bytes; what is there already is not written again.

        Returns:
            Their SHA-256, under which `get` finds them.

        Raises:
            TransientError: The store cannot be written.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(digest)
        try:
            if not self._files.exists(path):
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                partial = f"{path}.{uuid.uuid4().hex}.partial"
                self._files.pipe_file(partial, data)
                self._files.mv(partial, path)
        except OSError as error:
            raise TransientError(f"evidence cannot be kept in {self._root}: {error}") from error
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes with this digest.

        Raises:
            PermanentError: They are not there, or not what they were.
        """
        try:
            data = bytes(self._files.cat_file(self._path(digest)))
        except OSError as error:
            raise PermanentError(f"evidence {digest} is not in {self._root}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise PermanentError(f"evidence {digest} in {self._root} was changed")
        return data

    def _path(self, digest: str) -> str:
        if len(digest) != _DIGEST_CHARS or not digest.isalnum():
            raise PermanentError(f"{digest!r} is no digest")
        return f"{self._root}/{digest[:2]}/{digest}"
