"""Lines that look like trouble and are none. They come first: a line that matches is out."""

from __future__ import annotations

from everstep.core.classify.rule import QUIET, Rule, Standing

_LINUX = "Linux kernel source"


def _harmless(name: str, pattern: str, meaning: str, source: str, *examples: str) -> Rule:
    return Rule(name, pattern, Standing.HARMLESS, QUIET, meaning, source, examples)


RULES: tuple[Rule, ...] = (
    _harmless(
        "mount banner",
        r"(?:ext4|xfs|btrfs)\b.*\b(?:re-?mounted|mounted filesystem|mounting v\d|mount options)\b"
        r"(?!.*\bread-only because)|\bopts: .*errors=|errors=remount-ro",
        "a file system was mounted; errors= is an option",
        "ext4(5)",
        "EXT4-fs (sda2): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    ),
    _harmless(
        "boot banner",
        r"^\W*(?:\[[ \d.]+\] *)?(?:kernel: )?(?:mce: cpu\d* supports|edac mc: ver|edac.*giving out"
        r"|nmi watchdog: enabled|nvrm: loading nvidia|rcu: .*\bhierarchical|acpi (?:bios )?(?:error"
        r"|warning)|acpi: .*error|perf: interrupt took too long|command line: |kernel command line)"
        r"|machine check.*polling timer|\bpanic=|\boops=|hardware watchdog|i/o scheduler",
        "printed at every start of a machine",
        _LINUX,
        "EDAC MC: Ver: 3.0.0",
        "ACPI BIOS Error (bug): Could not resolve symbol [\\_SB.PC00], AE_NOT_FOUND",
        "[    0.000000] Command line: BOOT_IMAGE=/vmlinuz root=/dev/sda1 panic=30 mce=ignore_ce",
    ),
    _harmless(
        "clocks not lowered",
        r"(?:slowdown|power brake|power cap|sync boost|clocks setting|idle)\b[ \w]*: *not active"
        r"|(?:sw power cap|idle|applications clocks setting|sync boost"
        r"|display clock setting) *: *active",
        "the GPU runs as fast as its power allows",
        "NVML API: clocks event reasons",
        "        HW Thermal Slowdown           : Not Active",
        "        SW Power Cap                      : Active",
    ),
    _harmless(
        "register probe",
        r"access_reg(?:ister)?\b.*(?:bad (?:parameter|operation|resource)|not supported|failed)"
        r"|(?:mlx5_cmd\w*|mlx5_core).*(?:mcia|mtcap|mtmp|ppcnt|pddr|query_\w+).*(?:bad (?:param|op)"
        r"|not supported)|unable to read module eeprom|module id not recognized",
        "a monitor asked a device for a register that it lacks",
        "mlx5 driver: commands answered with a bad-parameter status",
        "mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:808:(pid 77): ACCESS_REG(0x805) op_mod(0x1)"
        " failed, status bad parameter(0x3), syndrome (0x1c6d49), err(-22)",
    ),
    _harmless(
        "management nic",
        r"\b(?:igb|igc|e1000e?|tg3|r8169|bnx2x?|cdc_ether|rndis_host|usbnet|be2net|ast"
        r"|virtio_net)\b"
        r".*\blink (?:is )?(?:not ready|down|up)|\b(?:eno\d\w*|usb\d|idrac|bmc\w*|docker\d*|veth\w*"
        r"|br-\w+|cali\w+|cni\d*|virbr\d*|flannel\S*|lxc\w*|lo)\b.*(?:link (?:is )?(?:not ready"
        r"|down)"
        r"|entered disabled state|carrier lost|lost carrier|state down)",
        "an interface that carries no training traffic went down",
        "driver names of 1 GbE and virtual interfaces",
        "igb 0000:01:00.1 eno2: igb: eno2 NIC Link is Down",
        "docker0: port 3(veth12ab34) entered disabled state",
    ),
    _harmless(
        "module parameter",
        r"nvrm: .*unable to read nv_pf0|nvidia: module (?:license|verification)|tainting kernel"
        r"|nvrm: .*(?:persistence mode is deprecated|no nvidia gpu found)"
        r"|nvidia-nvlink: nvlink core",
        "the driver's notes on itself",
        "NVIDIA driver README",
        "nvidia: module license 'NVIDIA' taints kernel. module verification failed: tainting"
        " kernel",
    ),
    _harmless(
        "removable drive",
        r"\bdev (?:sr|fd|loop)\d",
        "a drive without a medium, or an image file that was taken away",
        _LINUX,
        "blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ)",
    ),
    _harmless(
        "driver notes",
        r"insufficient power on the pcie slot|nv_get_p2p_free_callback.*invalid context",
        "a driver's remark without a failure",
        "mlx5 driver; nvidia-peermem",
        "mlx5_core 0000:3b:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot",
    ),
    _harmless(
        "pcie corrected",
        r"severity=correct(?:ed|able)|aer: (?:multiple )?correct(?:ed|able) error"
        r"|\berror status/mask=|: +\[ ?\d+\] (?:timeout|rollover|badtlp|baddllp|rxerr"
        r"|advnonfatalerr)\b",
        "PCIe repeated a transfer",
        _LINUX + ": PCIe AER",
        "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer",
    ),
    _harmless(
        "nccl optional part",
        r"nccl info.*(?:plugin|libnccl-net|libnccl-tuner|libnccl-profiler|no device found"
        r"|libnccl-env|gdrcopy|gdr driver|failed to find nccl\w*plugin|could not find: lib)",
        "NCCL looks for parts that it can do without",
        "NCCL source: plugin loading",
        "node:7:7 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal net.",
        "node:7:7 [0] NCCL INFO NET/IB : No device found.",
    ),
    _harmless(
        "address family",
        r"errno: ?97\b|address family not supported by protocol",
        "torch tried IPv6 first",
        "torch: c10d socket.cpp",
        "[W socket.cpp:426] [c10d] The server socket cannot be initialized on [::]:29500 (errno: 97"
        " - Address family not supported by protocol).",
    ),
    _harmless(
        "warning class",
        r"\b(?:user|future|deprecation|pendingdeprecation|resource|import"
        r"|runtime)warning: (?!.*cuda err)",
        "a Python warning",
        "Python: warnings",
        "/opt/x.py:3: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. error",
    ),
    _harmless(
        "cleanup at exit",
        r"destroy_process_group\(\) was not called|leaked (?:semaphore|shared_memory)"
        r"|resource_tracker: |exception ignored in|error in atexit"
        r"|process group has not been destroyed",
        "said while a process ends",
        "torch: ProcessGroupNCCL destructor; Python: resource_tracker",
        "Warning: WARNING: destroy_process_group() was not called before program exit",
    ),
    _harmless(
        "second registration",
        r"unable to register cu\w+ factory|attempting to register factory for plugin cu"
        r"|tf-trt warning|could not find tensorrt|computation_placer already registered",
        "TensorFlow's libraries beside torch",
        "TensorFlow: stream executor",
        "E0000 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory"
        " for plugin cuDNN when one has already been registered",
    ),
    _harmless(
        "monitoring service",
        r"wandb: (?:warning|network error|error).*(?:retry|connection|network"
        r"|failed to (?:detect|query))"
        r"|tensorboard.*(?:warning|not found)|telemetry.*(?:fail|error)|usage statistics",
        "a metrics service is not reached; training goes on",
        "wandb: retry loop",
        "wandb: Network error (ConnectionError), entering retry loop.",
    ),
    _harmless(
        "retried by itself",
        r"\bretrying \(retry\(total=[1-9]"
        r"|\b(?:will retry|retrying in|retrying after|retry \d+ (?:of|/) ?\d+"
        r"|attempt \d+/\d+ failed,"
        r" retrying)\b",
        "the program tries again by itself",
        "clients of storage services",
        "WARNING s3 read failed (timeout), retrying in 2.0 s",
    ),
    _harmless(
        "zero count",
        r"^(?!.*(?:[:=] *-?(?:nan|inf)\b|iterations: +[1-9]|general protection|segfault)).*(?:"
        r"\b(?:errors?|failures?|nans?|skipped"
        r"|overflows?)\b[^:=\d,\"']{0,24}[\"']?[:=] *0\b(?![.\d])"
        r"|\b(?:0|no) (?:errors?|failures?|overflows?|nan iterations|mismatch\w*)\b)",
        "a counter that reads zero",
        "trainers' step lines",
        " iteration 10/ 500 | loss: 2.1 | number of skipped iterations:   0 | number of nan"
        " iterations:   0 |",
    ),
    _harmless(
        "searched and not there",
        r"\bno (?:new |gpu |nvidia |critical |active |recent |pending )*(?:s?xids?\b|unhealthy\b"
        r"|(?:uncorrect\w+|ecc|pcie|aer|nvlink|mce|hardware|kernel|memory|disk|smart)"
        r" (?:ecc |memory )?(?:errors?|faults?|events?)\b)"
        r"|(?:^|info\W+|found |detected |has |had )(?:0|zero) (?:uncorrect\w+|s?xids?|ecc)\b"
        r"|\b(?:errors?|xids?|faults?|events?|failures?)\b[^:]{0,40}: *(?:none|nothing|clean)"
        r"(?: found)?\W*$",
        "a check found no fault",
        "node health checks",
        "gpu-health: no xid 79 or 48 found in dmesg",
        "INFO: 0 uncorrectable ECC errors",
        "checking for xid 79 errors: none found",
    ),
    _harmless(
        "look at a path",
        r"^\W*(?:ls|stat|find|du): (?:cannot |.\S+: no such)",
        "a command looked whether a path is there",
        "coreutils",
        "ls: cannot access '/dev/nvidia-caps-imex-channels/': No such file or directory",
    ),
    _harmless(
        "variable named for an error",
        r"(?:^\W*|nccl info |export |\benv )(?:nccl_|ucx_|gloo_|nvshmem_|ompi_)\w+ *(?:=|is |set )"
        r"(?!.*(?:not found|no match|no socket|invalid|mismatch|fail|error: ))"
        r"|\b(?:nccl_async_error_handling|torch_nccl_\w+|pythonfaulthandler"
        r"|log_?level)\b *(?:=|is |set )"
        r"|^(?!.*error: ).*--[\w-]*(?:error|fail|nan|timeout)[\w-]*[ =]"
        r"|^\s*(?:arguments|environment): ",
        "settings that have error in their name",
        "launchers print their arguments",
        "export TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
        "node:7:7 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
        "  --check-for-nan-in-loss-and-grad --distributed-timeout-minutes 10",
    ),
)
