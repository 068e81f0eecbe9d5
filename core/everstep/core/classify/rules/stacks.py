"""Stack dumps and flight recorders: where ranks stand, and who is missing."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_MISSING = Reading(Symptom.JOB_HANG, Label.UNKNOWN, Action.CHECK, 0.5)
_STORAGE = Reading(Symptom.JOB_HANG, Label.STORAGE, Action.RETRY, 0.5)
_DUMPS = "py-spy; torch: torchfrtrace"

RULES: tuple[Rule, ...] = (
    Rule(
        "ranks missing",
        r"not all ranks join|missing ranks?|ranks? .*(?:not joined|did not join|has not joined"
        r"|did not enter)"
        r"|no (?:dump|answer|stack)\b.*rank|rank.*no (?:dump|answer|stack)\b|failed to (?:dump"
        r"|attach)",
        Standing.SIGN,
        _MISSING,
        "a rank did not come to a collective; who is missing is the suspect",
        _DUMPS,
        ("Not all ranks joining collective 12 at entry 4: Missing ranks: {3}",),
    ),
    Rule(
        "group of ranks",
        r"^\W*(?:world[ _]size|expected ranks)\b.*\d",
        Standing.CONTEXT,
        _MISSING,
        "how many ranks a group has",
        _DUMPS,
        ("world size: 8",),
    ),
    Rule(
        "frame in storage",
        r"^[^|]*\b(?:fsync|fdatasync|pwrite|nfs_\w+|rpc_wait\w*|wait_on_page\w*|ll_\w+|fuse_\w+"
        r"|ceph_\w+"
        r"|save_checkpoint|save_to_checkpoint|torch_save|put_object|upload_part|upload_file)\b"
        r"[^|]*(?:\(|line \d|\+0x)",
        Standing.SIGN,
        _STORAGE,
        "a rank stands in a write or a read",
        _DUMPS,
        (
            "    save_checkpoint (megatron/training/checkpointing.py:401)",
            " nfs_wait_bit_killable+0x1/0x2",
        ),
    ),
    Rule(
        "frame in a collective",
        r"\b(?:all_?reduce|all_?gather\w*|reduce_scatter\w*|broadcast\w*|barrier|all_to_all\w*"
        r"|recv_forward"
        r"|recv_backward|batch_isend_irecv|synchronize|cudastreamsynchronize|cueventsynchronize"
        r"|wait)\b"
        r" ?\(.*(?:distributed|nccl|\.py:\d+|\.so)",
        Standing.CONSEQUENCE,
        _MISSING,
        "a rank waits for another one",
        _DUMPS,
        ("    all_reduce (torch/distributed/distributed_c10d.py:2501)",),
    ),
)
