"""Ranks that wait for one another, do not find one another, or lose one another."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_TORCH = "torch: ProcessGroupNCCL, ProcessGroupGloo, TCPStore"
_PEER = Reading(Symptom.NETWORK_ERROR, Label.UNKNOWN, Action.RETRY, 0.3)
_HANG = Reading(Symptom.NCCL_TIMEOUT, Label.USER_CODE, Action.ROLLBACK, 0.4)
_START = Reading(Symptom.JOB_HANG, Label.INFRASTRUCTURE, Action.RETRY, 0.5)
_PORT = Reading(Symptom.PROCESS_CRASH, Label.INFRASTRUCTURE, Action.RETRY, 0.7)

RULES: tuple[Rule, ...] = (
    Rule(
        "watchdog time-out",
        r"watchdog caught collective operation timeout|collective operation timeout: work"
        r"|worknccl\(.*timed out|timed out in blocking wait"
        r"|ran for \d+ milliseconds before timing out"
        r"|some nccl operations have failed or timed out|timed out waiting \d+ ?ms for"
        r"|monitored_?barrier.*(?:timed out|failed|did not)"
        r"|(?<!deadline_exceeded: )barrier timed out"
        r"|watchdog.*(?:got stuck|hung|heartbeat)|heartbeat ?monitor timed out"
        r"|failure detected by watchdog|timeout at nccl work|collective.*(?:hang|stuck)"
        r"|nccl\b.*\b(?:timed out|time-?out)\b"
        r"(?! *[=:]? *(?:\d|timedelta|datetime|set\b|is\b|minutes))",
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
        r"address already in use|eaddrinuse|errno: ?98\b|errno 98\b"
        r"|port \d+ (?:is )?(?:already )?in use"
        r"|failed to bind (?:to )?(?:the )?(?:socket|address|port|tcp|any)|bind: address",
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
        r"|\bsocket timeout|wait timeout after \d+|distnetworkerror|diststoreerror"
        r"|store.*timed? ?out"
        r"|timed out connecting|so_error: connection refused|waiting for (?:\w+ )?(?:clients"
        r"|workers|peers|nodes).*time"
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
        r"|remote process exited|distbackenderror|nccl comm\w* (?:\d+ )?was aborted"
        r"|comm\w* .*abort|application crash on rank"
        r"|ncclcommabort|store.*(?:no longer|unreachable)"
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
)
