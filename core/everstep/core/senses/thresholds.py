"""Every interval and threshold of the senses, with its reason.

The paper looks at hosts every 2 s, GPUs every 10 s and the network every 30 s (section 4.1, Table
3); where an event tells earlier, these are the safety net.
"""

from __future__ import annotations

from dataclasses import dataclass

HOST_EVERY_S = 2.0
"""As the paper: disk, mounts, memory pressure and clock have no events."""

GPU_EVERY_S = 10.0
"""As the paper; a look at 8 GPUs is about 200 driver calls. Xids come as events between looks."""

GPU_DEADLINE_S = 5.0
"""For one GPU's answer. Driver calls take milliseconds, and tens of them a second while a GPU is
being reset; the kernel's own time-out for the GPU's processor is 45 s (Xid 119)."""

GPU_START_DEADLINE_S = 30.0
"""For opening the driver, which takes seconds a GPU without the persistence daemon."""

NETWORK_EVERY_S = 1.0
"""InfiniBand ports have no link events; reading one port is about ten small files. Ethernet links
are looked at at once when the kernel says that one changed."""

PORT_SETTLED_S = 10.0
"""A port that is up this long has come back; what happens before belongs to the same fault."""

PORT_CLEAR_S = 60.0
"""How long a port has to be up to be healthy again; operators miss ports that clear sooner
(leptonai/gpud PR 1110)."""

PORT_STAYS_DOWN_S = 30.0
"""A port that is down this long counts as a second alert: the paper looks every 30 s, and NCCL's
time-out (2^20 x 4.096 us, 7 retries) gives an operation up after as long."""

ERROR_RATE_PER_S = 1.0
"""Errors of a port a second, over COUNTER_WINDOW_S. NVSentinel calls 120 symbol errors an hour
fatal; one a second is thirty times that, and far over what a bit error rate of 1e-12 gives."""

COUNTER_WINDOW_S = 30.0
"""As the paper's look at packet loss."""

LOSS_RATIO = 0.001
"""Share of packets lost: at this share a single TCP flow across 100 us falls under 2 Gbit/s."""

DISK_FREE_RATIO = 0.02
"""ext4 slows and log files tear under this; a checkpoint that does not fit costs the job's work."""

INODES_FREE_RATIO = 0.01
"""The same for files."""

MEMORY_FULL_STALL_PERCENT = 20.0
"""Share of 10 s in which every task waited for memory; systemd-oomd kills at 60 % of `full`."""

CLOCK_JUMP_S = 1.0
"""NTP slews less than 1 ms a second; a larger difference between two looks is a step."""

MOUNT_DEADLINE_S = 10.0
"""For an answer of a file system; a healthy one answers in milliseconds."""

CORRECTED_PER_DAY = 50
"""Corrected memory errors of one machine: rasdaemon's default for taking a page out of use."""

HUNG_AFTER_XID_S = 600.0
"""An uninterruptible task this soon after a channel was torn down waits for the driver."""

FOLLOWS_S = 600.0
"""Xids of other GPUs this soon after a fault are taken for its consequence."""

EVENT_CLEARS_S = 600.0
"""An event of the kernel log has no end; without another one for this long it is over."""

TEMPERATURE_MARGIN_C = 2
"""Below the slowdown threshold that the GPU itself reports."""

TEMPERATURE_LIMIT_C = 85
"""Where the GPU reports no threshold: data center GPUs slow down at 87 C or above."""

PCIE_REPLAYS_PER_S = 1.0
"""A healthy link replays a few packets a day."""

PCIE_WINDOW_S = 60.0
"""A retrained link replays a burst, once."""

PSTORE_DAYS = 7
"""How long a crash of the kernel is worth telling of."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How many looks in a row make a fault, and how long it has to be gone to be over.

    Attributes:
        looks: Faulty looks in a row before an alert, at least 1.
        clear_after_s: Seconds of healthy looks before it may be raised again.
    """

    looks: int = 1
    clear_after_s: float = 60.0


EVENT_ITEMS = frozenset(
    {
        "gpu.xid",
        "gpu.sxid",
        "gpu.driver",
        "host.kernel",
        "host.hung_task",
        "host.memory_errors",
        "host.oom",
        "host.filesystem",
        "host.disk",
        "host.clock",
    }
)
"""Items that are told of by events and that no later look finds healthy."""

PATIENCE: dict[str, Patience] = {
    # Throttling and heat come and go within seconds under load; three looks are half a minute.
    "gpu.temperature": Patience(3, 120.0),
    "gpu.throttle": Patience(3, 120.0),
    # Links drop to a lower width while idle on some boards.
    "gpu.pcie": Patience(3, 120.0),
    # One look may fall into the start or the end of a job.
    "gpu.processes": Patience(3, 60.0),
    "host.memory": Patience(2, 60.0),
    # Ports bring their own hysteresis.
    "network.port": Patience(1, 0.0),
    "network.rate": Patience(2, 60.0),
}

DEFAULT_PATIENCE = Patience()


def patience(item: str) -> Patience:
    """The patience with an item."""
    return PATIENCE.get(item, DEFAULT_PATIENCE)
