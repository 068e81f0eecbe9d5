"""What slurm, Kubernetes, container runtimes and clouds say of a job and its machines."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_STOPPED = Reading(Symptom.PREEMPTION, Label.MANUAL, Action.RETRY, 0.6)
_PREEMPTED = Reading(Symptom.PREEMPTION, Label.INFRASTRUCTURE, Action.RETRY, 0.85)
_NODE = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.8)
_POD = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.ROLLBACK, 0.65)
_AGAIN = Reading(Symptom.CONTAINER_ERROR, Label.INFRASTRUCTURE, Action.RETRY, 0.6)

RULES: tuple[Rule, ...] = (
    Rule(
        "preempted",
        r"due to preemption|\bpreempt(?:ed|ion)\b|spot (?:instance )?(?:interruption|termination)"
        r"|instance.*reclaim"
        r"|instance will be (?:terminated|stopped|retired)|scheduled for (?:retirement|maintenance"
        r"|termination)"
        r"|insufficient nvidia\.com/gpu|failedscheduling|low on resource: (?:cpu|pids)"
        r"|nodeshutdown|node is shutting down"
        r"|auto-?requeue signal|requeu?ing job"
        r"|maintenance event|terminat\w+ by (?:the )?(?:kubelet|scheduler)|taintmanagereviction",
        Standing.PROOF,
        _PREEMPTED,
        "the scheduler took the machines away",
        "slurm: scancel(1), Kubernetes: disruptions",
        (
            "slurmstepd: error: *** STEP 7.0 ON node-1 CANCELLED AT 2024-01-01 DUE TO PREEMPTION"
            " ***",
        ),
    ),
    Rule(
        "node failed",
        r"due to node fail|node_fail|node failure|nodes? \S+ not responding|failure of node"
        r"|setting (?:node )?down\b|nodenotready"
        r"|node status is now: (?:nodenotready|unknown)|kubelet stopped posting|node has been lost"
        r"|node (?:is )?(?:not ready"
        r"|unreachable|lost|down)"
        r"|nodelost|nodestatusunknown|host (?:is )?(?:unresponsive|not responding)",
        Standing.CAUSE,
        _NODE,
        "the scheduler lost the machine",
        "slurm: job reason codes; Kubernetes: node conditions",
        ("slurmstepd: error: *** JOB 7 ON node-1 CANCELLED AT 2024-01-01 DUE TO NODE FAILURE ***",),
    ),
    Rule(
        "cancelled",
        r"due to time limit|\btimelimit\b|\bcancelled (?:at|by)|raisedsignal:(?:15|2|10|12)"
        r"|keyboardinterrupt"
        r"|deadlineexceeded|job.*(?:cancelled|canceled)|scancel|received (?:15|2|10"
        r"|12) death signal|received sigint|received sigusr|walltime",
        Standing.CAUSE,
        _STOPPED,
        "somebody, or a time limit, ended the job",
        "slurm: job reason codes",
        ("slurmstepd: error: *** JOB 7 ON node-1 CANCELLED AT 2024-01-01 DUE TO TIME LIMIT ***",),
    ),
    Rule(
        "container wrong",
        r"imagepullbackoff|errimagepull|manifest unknown|createcontainer(?:config)?error"
        r"|invalid image"
        r"|exec format error|command not found|no such file or directory: unknown"
        r"|entrypoint.*not found"
        r"|exec: .*not found|failedmount|mountvolume.*fail|unbound.*persistentvolume",
        Standing.CAUSE,
        _POD,
        "the container cannot be made as it is described",
        "Kubernetes: container states",
        ("Warning  Failed  kubelet  Error: ImagePullBackOff",),
    ),
    Rule(
        "container not made",
        r"oci runtime create failed|failed to create (?:shim|containerd) task|runcontainererror"
        r"|nvidia-container-cli|failedcreatepodsandbox|unexpectedadmissionerror"
        r"|containerd.*(?:timed? ?out|unavailable)",
        Standing.SIGN,
        _AGAIN,
        "the container's runtime failed",
        "Kubernetes: container states; OCI runtime",
        ("failed to create shim task: OCI runtime create failed: runc create failed: unknown",),
    ),
)
