"""InfiniBand, RoCE and EFA as NCCL meets them: completions, events, queue pairs."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_VERBS = "rdma-core: ibv_wc_status, ibv_get_async_event(3)"
_CONFIG = Reading(Symptom.NETWORK_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.6)
_PROGRAM = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.75)
_FABRIC = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.RETRY, 0.6)
_UNSURE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.CHECK, 0.45)
_NIC = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.EVICT, 0.75)
_PEER = Reading(Symptom.NETWORK_ERROR, Label.UNKNOWN, Action.RETRY, 0.3)

RULES: tuple[Rule, ...] = (
    Rule(
        "memory not lockable",
        r"(?:ibv_reg_mr\w*|ibv_create_(?:qp|cq)|ibv_alloc_pd|ibv_reg_dmabuf_mr)\b.*"
        r"(?:cannot allocate memory|error 12\b|errno 12\b)|memlock|rlimit_memlock",
        Standing.CAUSE,
        _CONFIG,
        "the container may not lock memory (memlock limit), so verbs cannot register it",
        "ibv_reg_mr(3); getrlimit(2)",
        ("NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",),
    ),
    Rule(
        "queue pair refused",
        r"ibv_modify_qp.*(?:invalid argument|no such|no data available|network is unreachable)"
        r"|gid index.*invalid|invalid gid|failed to find a matching gid",
        Standing.CAUSE,
        _CONFIG,
        "the adapter does not take the settings that NCCL gives it: wrong GID, library or driver",
        _VERBS,
        ("NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",),
    ),
    Rule(
        "adapter failed",
        r"got async event : (?:local catastrophic|device fatal)|ibv_event_device_fatal",
        Standing.PROOF,
        _NIC,
        "an InfiniBand adapter reports that it failed",
        _VERBS,
        ("NCCL WARN NET/IB : mlx5_3:1 Got async event : local catastrophic error",),
    ),
    Rule(
        "port event",
        r"got async event : port error|ibv_event_port_err|device \d+ marked as failed"
        r"|ncclib\w*devicefailure|async event.*port (?:error|down)",
        Standing.CAUSE,
        _FABRIC,
        "a port went down; the first time is tolerated",
        _VERBS,
        ("NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",),
    ),
    Rule(
        "completion flushed",
        r"status[= ]5\b.*(?:vendor err|opcode|hca)|work request flushed",
        Standing.CONSEQUENCE,
        _PEER,
        "a work request thrown away after another one failed",
        _VERBS,
        (
            "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=5 opcode=0 len=0"
            " vendor err 249",
        ),
    ),
    Rule(
        "completion timed out",
        r"(?:got completion|ib.*completion|wc).*(?:status[= ]|error[: ]+)1[23]\b|transport retry"
        r" counter exceeded|rnr retry counter exceeded|retry_exc_err|retry exceeded"
        r"|net/ofi.*(?:completed with error|rc: )|undeliverable|unreachable remote"
        r"|unresponsive (?:receiver|peer)"
        r"|\befa(?:_\w+)?:.*(?:err: \d|error)|libfabric.*(?:err|fail)|fi_cq_read\w*.*(?:err|fail)",
        Standing.CAUSE,
        _FABRIC,
        "a peer's adapter did not acknowledge; path or peer, and often passing",
        _VERBS,
        (
            "NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with status=12 opcode=0 len=0"
            " vendor err 129",
        ),
    ),
    Rule(
        "completion length",
        r"got completion.*(?:status[= ]|error )1\b",
        Standing.CAUSE,
        _PROGRAM,
        "sender and receiver disagree on a message's length",
        _VERBS,
        ("NCCL WARN NET/IB : Got completion with error 1, opcode 1, len 4, vendor err 105",),
    ),
    Rule(
        "completion failed",
        r"got completion.*(?:status[= ]|error )\d+\b|local (?:protection|qp operation) error|remote"
        r" (?:access|invalid request|operation) error",
        Standing.SIGN,
        _UNSURE,
        "an InfiniBand operation failed",
        _VERBS,
        ("NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 4, vendor err 81",),
    ),
    Rule(
        "queue pair not connected",
        r"ibv_(?:modify_qp|open_device|create_ah)\b.*(?:fail|error)|unhandled ib|nccl warn net/ib",
        Standing.SIGN,
        _UNSURE,
        "an InfiniBand connection could not be made",
        _VERBS,
        ("NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110",),
    ),
)
