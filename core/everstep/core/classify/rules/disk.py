"""Disks of the machine itself, and the file systems on them."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_LINUX = "Linux kernel source and admin guide"
_DISK = Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.EVICT, 0.85)

RULES: tuple[Rule, ...] = (
    Rule(
        "file system damaged",
        r"btrfs[^:]*: (?:csum failed|checksum error)|btrfs error [^:]*: bdev \S+ errs: "
        r"|(?:ext4|xfs|btrfs|f2fs)[^:]*: ?(?:error|corruption|.*(?:i/o|internal) error"
        r"|.*metadata corruption|.*shut(?:ting)? ?down|.*has been shut)|ext4-fs error"
        r"|xfs_force_shutdown"
        r"|remounting filesystem read-only|detected aborted journal|journal has aborted"
        r"|aborting journal",
        Standing.PROOF,
        _DISK,
        "a local file system is damaged or its disk fails",
        _LINUX + ": fs/ext4, fs/xfs, fs/jbd2",
        (
            "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm sh: reading"
            " directory",
            "EXT4-fs (nvme0n1p2): Remounting filesystem read-only",
            "XFS (nvme1n1): Metadata corruption detected at xfs_agf_verify, xfs_agf block 0x1",
            "XFS (dm-3): Filesystem has been shut down due to log error (0x2).",
        ),
    ),
    Rule(
        "disk error",
        r"i/o error, dev |buffer i/o error|critical (?:medium|target) error|medium error"
        r"|unrecovered read error|failed command: |ata\d+(?:\.\d+)?: (?:exception|failed)"
        r"|nvme\w*:.*(?:controller is down|removing after probe failure|disabling device"
        r"|device not ready|csts=0xffffffff|frozen state error)|smart.*(?:failing|failed)"
        r"|lost async page write|raid.*(?:disk failure|degraded)",
        Standing.PROOF,
        _DISK,
        "a disk of the machine fails",
        _LINUX + ": block layer, drivers/nvme, libata",
        (
            "blk_update_request: I/O error, dev nvme0n1, sector 1024 op 0x0:(READ) flags 0x80700",
            "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
            "nvme nvme1: Removing after probe failure status: -19",
            "Buffer I/O error on dev sdb, logical block 0, async page read",
        ),
    ),
    Rule(
        "disk slow",
        r"nvme\w*: i/o (?:tag )?\d+.*timeout|nvme\w*: abort status",
        Standing.SIGN,
        Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.CHECK, 0.5),
        "a disk answers late",
        _LINUX + ": drivers/nvme/host/pci.c",
        ("nvme nvme0: I/O 123 QID 5 timeout, aborting",),
    ),
)
