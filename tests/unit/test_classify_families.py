"""A failure a family, in wording of its own, and surroundings that turn what a line means."""

from __future__ import annotations

import pytest

from everstep.core.classify.evidence import Classification, Context
from everstep.core.classify.judge import classify
from everstep.core.classify.names import Action, Kind, Label
from everstep.core.classify.reader import read

EVICT, CHECK, RETRY = Action.EVICT, Action.CHECK, Action.RETRY
ROLLBACK, FIX_DATA, NONE = Action.ROLLBACK, Action.FIX_DATA, Action.NONE

SM = "NVRM: Xid (PCI:0000:3b:00): 13, SM Warp Exception on (GPC {}, TPC 2, SM 1): x"
HUNG = "INFO: task python3:77 blocked for more than 120 seconds."
WORK = (
    "[rank{0}]:[E101 10:00:{0:02d}.1 ProcessGroupNCCL.cpp:616] [PG ID 1 PG GUID 1 Rank {0}]"
    " Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType={1}, NumelIn={2},"
    " NumelOut={2}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out."
)


def judge(*texts: str, context: Context | None = None) -> Classification:
    evidence = [read([text.encode()], str(n), source=n) for n, text in enumerate(texts)]
    return classify(evidence, context)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid=7, DBE (double bit error) detected", EVICT),
        ("NVRM: Xid (PCI:0000:3b:00): 64, pid=7, Row Remapper Error", EVICT),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=7, Row Remapper: New row marked", NONE),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 00000010", NONE),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, MMU Fault: ENGINE GRAPHICS", ROLLBACK),
        ("NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1; status=0x00000051", NONE),
        ("NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1; status=0x00000062", EVICT),
        ("NVRM: _issueRpcAndWait: rpcSendMessage failed with status 0x0000000f for fn 76!", EVICT),
        ("device-plugin: nvidia.com/gpu marked healthy, no unhealthy devices", NONE),
        ("INFO: 0 uncorrectable ECC errors", NONE),
        ("n:7:7 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.", NONE),
        (
            "NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details)",
            CHECK,
        ),
        ("GPU 0 uncorrectable ECC errors detected", EVICT),
        ("gpu-health: no xid 79 or 48 found in dmesg", NONE),
        ("checking for xid 79 errors: none found", NONE),
        ('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0', NONE),
        ('DCGM_FI_DEV_XID_ERRORS{gpu="0"} 79', EVICT),
        ("a data set of questions about kernel panic and its causes", NONE),
        ("step 100 loss 2.1 | timeout 600s", NONE),
        ("init_process_group(backend='nccl', timeout=0:10:00)", NONE),
        (SM.format(1) + "\n" + SM.format(1), CHECK),
        (SM.format(1) + "\n" + SM.format(4), ROLLBACK),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, Ch 00000010\n" + HUNG, EVICT),
        (HUNG, CHECK),
        (HUNG + "\nCall Trace:\n nfs_wait_on_request+0x2/0x3", RETRY),
        ("Kernel panic - not syncing: Fatal exception in interrupt", EVICT),
        ("EDAC MC1: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0", EVICT),
        ("EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0", NONE),
        ("EDAC sbridge MC0: CPU 0: Machine Check Event: 0 Bank 5: 8c00004000010091", NONE),
        ("EDAC sbridge MC0: CPU 0: Machine Check Event: 0 Bank 5: be00000000010091", EVICT),
        ("[Hardware Error]: Uncorrected error, software restartable.", EVICT),
        ("[Hardware Error]: Corrected error, no action required.", NONE),
        ("NETDEV WATCHDOG: eno1 (igb): transmit queue 0 timed out", NONE),
        ("NETDEV WATCHDOG: ens1 (mlx5_core): transmit queue 0 timed out", EVICT),
        ("nvme nvme0: Device not ready; aborting reset, CSTS=0x1", EVICT),
        ("XFS (nvme0n1p1): log I/O error -5", EVICT),
        ("mlx5_core 0000:3b:00.0 ens1np0: Link down", RETRY),
        ("mlx5_core 0000:3b:00.0 ens1np0: Link down\n" * 2, EVICT),
        ("e1000e 0000:00:1f.6 eth0: NIC Link is Down", NONE),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", ROLLBACK),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
            " total capacity of 79.15 GiB of which 1.2 GiB is free. Process 4242 has 70.00 GiB"
            " memory in use.",
            RETRY,
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", EVICT),
        ("RuntimeError: CUDA error: device-side assert triggered", ROLLBACK),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", CHECK),
        ("ncclInternalError: Internal check failed.", CHECK),
        ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0", ROLLBACK),
        ("NCCL WARN Error while creating shared memory segment /dev/shm/nccl-1", ROLLBACK),
        ("OSError: [Errno 28] No space left on device", RETRY),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", ROLLBACK),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/data'", RETRY),
        ("botocore.exceptions.ClientError: An error occurred (503) ... ServiceUnavailable", RETRY),
        ("safetensors_rust.SafetensorError: Error while deserializing header: x", RETRY),
        ("RuntimeError: Error(s) in loading state_dict for GPT: Missing key(s)", ROLLBACK),
        ("pyarrow.lib.ArrowInvalid: Parquet magic bytes not found in footer", FIX_DATA),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1", FIX_DATA),
        ("ModuleNotFoundError: No module named 'transformer_engine'", ROLLBACK),
        ("[rank3]: AttributeError: 'NoneType' object has no attribute 'shape'", ROLLBACK),
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2025 DUE TO NODE FAILURE ***", EVICT),
        ("slurmstepd: error: *** STEP 9.0 ON n1 CANCELLED AT 2025 DUE TO PREEMPTION ***", RETRY),
        ("Last State: Terminated\n  Reason: OOMKilled\n  Exit Code: 137", RETRY),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.", ROLLBACK),
        ("traceback : Signal 7 (SIGBUS) received by PID 9", CHECK),
        ("OVERFLOW! Skipping step. Attempted loss scale: 2, reducing to 1", ROLLBACK),
        ("iteration 5 | lm loss: nan | grad norm: nan | number of nan iterations:   0 |", CHECK),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0", ROLLBACK),
        ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients."
         " 15/16 clients joined.", RETRY),
        ("all is well\n" * 5, NONE),
        ("the widget reported a fatal error of a new sort", CHECK),
    ],
)  # fmt: skip
def test_first_action(text: str, action: Action) -> None:
    answer = judge(text)
    assert answer.first_action is action, answer


def test_cause_leads_whatever_comes_first() -> None:
    victim = "[rank0]: RuntimeError: [pair.cc:547] Connection closed by peer [10.0.0.2]:5"
    cause = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    answer = judge(victim, cause)
    assert (answer.file, answer.lines, answer.culprit_rank) == ("1", (0,), 3)


def test_the_earliest_of_equals_leads_across_files() -> None:
    late = "2025-01-01 10:00:00,900 [rank0]: ValueError: x"
    early = "2025-01-01 10:00:00,100 [rank5]: KeyError: 'y'"
    assert judge(late, early).culprit_rank == 5
    assert judge(early, late).file == "0"


def test_wait_since_a_save_is_storage() -> None:
    save = "09:50:00.000 INFO saving checkpoint at step 100\n"
    wait = "10:00:00.500 [rank7]: " + WORK.format(7, "ALLREDUCE", 1).split("] ", 1)[1]
    answer = judge(save + wait)
    assert (answer.label, answer.first_action) == (Label.STORAGE, RETRY)
    later = "09:50:20.000 INFO successfully saved checkpoint\n"
    assert judge(save + later + wait).label is not Label.STORAGE


def test_ranks_in_different_collectives_are_the_program_s() -> None:
    same = "\n".join(WORK.format(rank, "ALLREDUCE", 8) for rank in (0, 1))
    other = WORK.format(2, "_ALLGATHER_BASE", 8)
    assert judge(same + "\n" + other).confidence > judge(same).confidence
    assert judge(same + "\n" + other).first_action is ROLLBACK


def test_the_silent_rank_is_the_culprit_of_a_hang() -> None:
    text = "\n".join(WORK.format(rank, "ALLREDUCE", 8) for rank in (0, 1, 3))
    assert judge(text, context=Context(world_size=4)).culprit_rank == 2
    assert judge(text).culprit_rank is None


def test_a_large_job_s_hang_is_checked_before_its_code() -> None:
    text = WORK.format(1, "ALLREDUCE", 8)
    assert judge(text).first_action is ROLLBACK
    assert judge(text, context=Context(world_size=2048)).first_action is CHECK


def test_context_decides_what_text_leaves_open() -> None:
    text = "Fatal Python error: Segmentation fault"
    assert judge(text).first_action is CHECK
    assert judge(text, context=Context(first_run=True)).first_action is ROLLBACK
    same = Context(reproducible=True, all_ranks=True)
    assert judge(text, context=same).first_action is ROLLBACK


def test_context_does_not_outweigh_proof() -> None:
    text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert judge(text, context=Context(first_run=True)).first_action is EVICT


def test_silence_is_evidence_when_somebody_says_so() -> None:
    text = "INFO step 5\nINFO saving checkpoint at step 5"
    assert judge(text).first_action is NONE
    answer = judge(text, context=Context(hung=True))
    assert (answer.label, answer.first_action) == (Label.STORAGE, RETRY)


def test_slower_steps_that_last_are_told() -> None:
    steps = "".join(f"step {n} | TFLOPs: {410 + n % 3} |\n" for n in range(20))
    assert judge(steps).first_action is NONE
    slow = "".join(f"step {n} | TFLOPs: {300 + n % 3} |\n" for n in range(20, 24))
    answer = judge(steps + slow)
    assert (answer.first_action, answer.lines) == (CHECK, (20,))


def test_loss_that_jumps_five_times_is_told() -> None:
    steps = "".join(f"step {n} | loss: 2.{n} |\n" for n in range(9))
    assert judge(steps + "step 9 | loss: 9.0 |\n").first_action is NONE
    assert judge(steps + "step 9 | loss: 19.0 |\n").first_action is CHECK


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[   12.345678] NVRM: loading\n[   13.000000] EDAC MC: Ver: 3.0.0", Kind.KERNEL_LOG),
        ('Thread 0x7f (most recent call first):\n  File "a.py", line 1 in b', Kind.STACK_DUMP),
        ("2025-01-01 INFO step 1\n2025-01-01 INFO step 2", Kind.RANK_LOG),
        ('{"pg_status": {}, "entries": []}', Kind.FLIGHT_RECORDER),
    ],
)
def test_kind_is_guessed(text: str, kind: Kind) -> None:
    assert read([text.encode()]).kind is kind


def test_nothing_to_classify_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="nothing"):
        classify([])


def test_an_exception_is_told_by_its_message_and_not_by_the_line_that_raises_it() -> None:
    log = """[rank2]: Traceback (most recent call last):
[rank2]:   File "train.py", line 30, in main
[rank2]:     raise ValueError(f"bad loss {loss} in batch {i}")
[rank2]: ValueError: bad loss 1e9 in batch 77
"""
    answer = classify([read([log.encode()], "rank-2.log", Kind.RANK_LOG)])
    assert (answer.line, answer.culprit_rank) == (3, 2)
    assert answer.lines == (3,)
