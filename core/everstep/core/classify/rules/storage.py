"""Files, file systems, object stores and checkpoints: errno names first, then each service."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_ERRNO = "errno(3)"
_FULL = Reading(Symptom.DISK_FULL, Label.STORAGE, Action.RETRY, 0.85)
_REMOTE = Reading(Symptom.STORAGE_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_READ_ONLY = Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.CHECK, 0.5)
_LIMIT = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.65)

RULES: tuple[Rule, ...] = (
    Rule(
        "no space",
        r"no space left on device|enospc|errno 28\b|requested and \d+ written|disk quota exceeded"
        r"|edquot|errno 122\b"
        r"|disk (?:is )?full|diskpressure|low on resource: ephemeral-storage"
        r"|not enough (?:free )?disk"
        r"|quota (?:has been )?exceeded|out of disk space|file system full",
        Standing.PROOF,
        _FULL,
        "a disk or a quota is full",
        _ERRNO + ": ENOSPC, EDQUOT; Kubernetes: node-pressure eviction",
        (
            "OSError: [Errno 28] No space left on device: '/data/ckpt/7.pt'",
            "OSError: [Errno 122] Disk quota exceeded",
        ),
    ),
    Rule(
        "read-only file system",
        r"read-only file system|erofs|errno 30\b",
        Standing.CAUSE,
        _READ_ONLY,
        "a file system refuses writes: mounted so, or after an error of its disk",
        _ERRNO + ": EROFS",
        ("OSError: [Errno 30] Read-only file system: '/data/out'",),
    ),
    Rule(
        "file server",
        r"stale file handle|estale|errno 116\b|transport endpoint is not connected|errno 107\b"
        r"|remote i/o error|errno 121\b|errno 110\b|input/output error|errno 5\b|\beio\b"
        r"|software caused connection abort.*(?:/|mount)|host is down|errno 112\b|errno 108\b"
        r"|cannot send after transport endpoint shutdown|resource temporarily unavailable: '/"
        r"|mount\.\w+: .*(?:failed|timed out|denied|error)|bus error.*mmap|errno 103\b.*'/",
        Standing.CAUSE,
        _REMOTE,
        "a file system failed under the program",
        _ERRNO + ": ESTALE, ENOTCONN, EREMOTEIO, EIO, ETIMEDOUT, ESHUTDOWN",
        (
            "OSError: [Errno 116] Stale file handle",
            "OSError: [Errno 5] Input/output error: '/d/x'",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/fuse'",
        ),
    ),
    Rule(
        "open files",
        r"too many open files|emfile|errno 24\b|received 0 items of ancdata|file name too long",
        Standing.CAUSE,
        _LIMIT,
        "the process holds more files than it may",
        _ERRNO + ": EMFILE; torch: multiprocessing sharing strategies",
        ("OSError: [Errno 24] Too many open files: '/d/1'",),
    ),
)
