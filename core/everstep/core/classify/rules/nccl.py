"""NCCL, gloo and torch.distributed: results, InfiniBand completions, time-outs, lost peers."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_RESULTS = "NCCL API: ncclResult_t; NCCL source"
_VERBS = "rdma-core: ibv_wc_status, ibv_get_async_event(3)"
_TORCH = "torch: ProcessGroupNCCL, ProcessGroupGloo, TCPStore"

_CONFIG = Reading(Symptom.NETWORK_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.6)
_PROGRAM = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.75)
_FABRIC = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.RETRY, 0.6)
_UNSURE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.CHECK, 0.45)
_INTERNAL = Reading(Symptom.CUDA_ERROR, Label.UNKNOWN, Action.CHECK, 0.4)
_NIC = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.EVICT, 0.75)
_PEER = Reading(Symptom.NETWORK_ERROR, Label.UNKNOWN, Action.RETRY, 0.3)
_HANG = Reading(Symptom.NCCL_TIMEOUT, Label.USER_CODE, Action.ROLLBACK, 0.4)
_START = Reading(Symptom.JOB_HANG, Label.INFRASTRUCTURE, Action.RETRY, 0.5)
_PORT = Reading(Symptom.PROCESS_CRASH, Label.INFRASTRUCTURE, Action.RETRY, 0.7)
_SHM = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.8)

RULES: tuple[Rule, ...] = (
    Rule(
        "shared memory too small",
        r"(?:no space left|enospc|posix_fallocate|shared memory segment|ftruncate|mmap).*/dev/shm"
        r"|/dev/shm.*(?:no space left|too small|fail|error|size \d+)|insufficient shared memory"
        r"|shm(?:at|open|get).*no space|while (?:creating|extending) shared memory",
        Standing.PROOF,
        _SHM,
        "the container's /dev/shm is too small",
        "NCCL troubleshooting: shared memory; torch: DataLoader",
        (
            "NCCL WARN Error: failed to extend /dev/shm/nccl-Fk2 to 9637892 bytes, error: No space"
            " left on device (28)",
            "RuntimeError: unable to write to file </torch_77_1>: insufficient shared memory (shm)",
        ),
    ),
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
        "collectives differ",
        r"detected mismatch between collectives|collective\w* mismatch|mismatched collective"
        r"|(?:type|size|dtype|size_or_syntax|collective_type|collective_dtype)_mismatch"
        r"|collectives? .*(?:do not|don't|does not) match|mismatch(?:ed)? (?:sizes|types|dtypes)"
        r"|op\.?type.*(?:differs?|mismatch)|mixed (?:dtypes|sizes)",
        Standing.PROOF,
        Reading(Symptom.JOB_HANG, Label.USER_CODE, Action.ROLLBACK, 0.85),
        "ranks called different collectives, which a program does and a machine does not",
        "torch: DETAIL debug level, torchfrtrace",
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running"
            " collective: CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE)",
        ),
    ),
    Rule(
        "nccl usage",
        r"ncclinvalid(?:usage|argument)|invalid (?:usage|argument).*nccl"
        r"|nccl error.*invalid (?:usage"
        r"|argument)|duplicate gpu detected|nccl warn (?:invalid|.*: invalid)(?! (?:config|net))",
        Standing.CAUSE,
        _PROGRAM,
        "NCCL was called wrongly",
        _RESULTS,
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",),
    ),
    Rule(
        "nccl configuration",
        r"no socket interface found|unsupported gloo device|unable to (?:resolve hostname"
        r"|find address for)|no (?:usable|matching) (?:socket )?interface|nccl_(?:socket_ifname"
        r"|ib_hca).*(?:not found|no match|mismatch)|nccl warn.*mismatched.*version"
        r"|version mismatch.*nccl"
        r"|nccl.*version mismatch|(?:undefined symbol|symbol lookup error).*nccl|nccl_version"
        r"|gid index.*invalid"
        r"|invalid config|ibv_modify_qp.*(?:invalid argument|no such|no data available"
        r"|network is unreachable)"
        r"|failed to (?:initialize|find) (?:any )?net(?:work)? plugin|plugin.*abi",
        Standing.CAUSE,
        _CONFIG,
        "NCCL's network is configured wrongly for these machines",
        "NCCL environment variables",
        ("node:7:7 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found",),
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
        r" counter exceeded|rnr retry counter exceeded|retry_exc_err|retry exceeded",
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
    Rule(
        "watchdog time-out",
        r"watchdog caught collective operation timeout|collective operation timeout: work"
        r"|worknccl\(.*timed out|timed out in blocking wait"
        r"|ran for \d+ milliseconds before timing out"
        r"|some nccl operations have failed or timed out|timed out waiting \d+ ?ms for"
        r"|monitored_?barrier.*(?:timed out|failed|did not)|barrier timed out"
        r"|watchdog.*(?:got stuck|hung|heartbeat)|heartbeat ?monitor timed out"
        r"|failure detected by watchdog|timeout at nccl work|collective.*(?:hang|stuck)"
        r"|nccl.*timed? ?out",
        Standing.CONSEQUENCE,
        _HANG,
        "a rank waited for another one in vain",
        _TORCH,
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5,"
            " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029"
            " milliseconds before timing out.",
            "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms"
            " for recv operation to complete",
        ),
    ),
    Rule(
        "port taken",
        r"address already in use|eaddrinuse|errno: ?98\b|errno 98\b|failed to bind",
        Standing.CAUSE,
        _PORT,
        "another process holds the port, often one that a restart left",
        "errno(3): EADDRINUSE",
        (
            "RuntimeError: The server socket has failed to listen on any local network address."
            " EADDRINUSE, address already in use",
        ),
    ),
    Rule(
        "peers did not come",
        r"rendezvous(?:timeout|connection)?error|\d+/\d+ clients joined"
        r"|client socket has timed out|timed out after \d+ ?(?:ms|seconds) waiting for clients"
        r"|deadline_exceeded|heartbeat timeout|socketstartconnect|call to connect"
        r"|connectfullmesh failed|could not connect to (?:the )?(?:tcpstore|master|store)"
        r"|failed to connect to.*29\d\d\d"
        r"|no route to host|ehostunreach|network is unreachable|name or service not known"
        r"|temporary failure in name resolution|could not resolve|getaddrinfo fail",
        Standing.SIGN,
        _START,
        "a machine did not come to the meeting point, or cannot reach it",
        "torch: elastic rendezvous, TCPStore; errno(3)",
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients."
            " 15/16 clients joined.",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        ),
    ),
    Rule(
        "peer gone",
        r"connection (?:was likely )?(?:closed|reset|refused|aborted)|broken pipe"
        r"|closed by remote peer"
        r"|econnre(?:set|fused)|rendezvous(?:closed|graceful\w*)error|socket (?:closed"
        r"|recv failed|send failed|progress)|recvvalue failed"
        r"|sendbytes failed|failed to recv, got 0 bytes|peer closed|remote peer|ncclremoteerror"
        r"|application timeout caused pair closure|tcpstore server has shut down|pair closure"
        r"|nccl communicator was aborted|ncclcommabort|store.*(?:no longer|unreachable)"
        r"|should dump.*flag|early termination|taking the entire process down"
        r"|exiting with error.*dump",
        Standing.CONSEQUENCE,
        _PEER,
        "a peer went away first",
        _TORCH,
        (
            "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:5",
            "NCCL WARN socketProgress: Connection closed by remote peer node-b<5>",
        ),
    ),
    Rule(
        "nccl system error",
        r"ncclsystemerror|unhandled system error|nccl.*system call.*fail",
        Standing.SIGN,
        _UNSURE,
        "a system call of NCCL failed",
        _RESULTS,
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed",),
    ),
    Rule(
        "nccl internal error",
        r"ncclinternalerror|nccl.*internal (?:check|error)",
        Standing.SIGN,
        _INTERNAL,
        "NCCL failed inside",
        _RESULTS + "; paper, section 4.1: tests of the GPU, in a machine, between machines",
        ("ncclInternalError: Internal check failed.",),
    ),
    Rule(
        "nccl cuda error",
        r"ncclunhandledcudaerror|unhandled cuda error",
        Standing.CONSEQUENCE,
        _INTERNAL,
        "a CUDA call of NCCL failed; the cause is in another line",
        _RESULTS,
        ("ncclUnhandledCudaError: Call to CUDA function failed.",),
    ),
)
