"""Network adapters and their ports, as kernel and tools tell of them."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_DRIVERS = "kernel drivers mlx5, bnxt, ice, efa; rdma(8), ibstat(8), ethtool(8)"
_FIRST = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.RETRY, 0.6)
_UNSURE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.CHECK, 0.5)
_NIC = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.EVICT, 0.8)

RULES: tuple[Rule, ...] = (
    Rule(
        "adapter dead",
        r"mlx5_core.*(?:health compromised|fatal error|assert_var|in fatal state|device state = \d+"
        r" pci_status|internal error|enter error state|will cause a leak|wait vital"
        r"|handle_bad_(?:card|fw)|load_one failed|probe of \S+ failed|handle_hca_cap failed"
        r"|init\w* time-?out"
        r"|firmware (?:fatal|not responding|initialization failed|over \d+ ms))"
        r"|\b(?:mlx|bnxt|ice|irdma|hfi1|efa)\w*: probe of \S+ failed"
        r"|fw_fatal|(?:bnxt|ice|efa|hfi1|ib_\w+|mlx4_core).*(?:firmware (?:hang|not responding"
        r"|error)|fatal"
        r"|adapter (?:reset failed|dead))"
        r"|netdev watchdog: .*\((?:mlx|bnxt|ice|efa|ib_)\w*\).*timed out",
        Standing.PROOF,
        _NIC,
        "a network adapter failed",
        _DRIVERS,
        (
            "mlx5_core 0000:9a:00.0: poll_health:955:(pid 0): Fatal error 3 detected",
            "mlx5_core 0000:9a:00.0: print_health_info:424:(pid 0): assert_var[0] 0x0",
        ),
    ),
    Rule(
        "port flapping",
        r"\b(?:link|port|nic)\b.*\bflap(?:s|ped|ping)?\b|\bflap(?:s|ped|ping)\b.*\b(?:link|port"
        r"|nic)\b",
        Standing.CAUSE,
        _NIC,
        "a port goes up and down",
        _DRIVERS,
        ("port mlx5_4/1 flapping: 9 link down events in 60 s",),
    ),
    Rule(
        "fabric port down",
        r"(?:mlx5\w*|bnxt\w*|\bice\b|\befa\w*|hfi1\w*|irdma\w*|\bib\d|ibp\w+|roce\w*|rdma\w*"
        r"|mlx4\w*|\bens?p?\w*np\d)"
        r".*(?:link (?:is )?down|port (?:is )?down|port_err|carrier lost|lost carrier|state:? down"
        r"|state: 1: down|physical state: (?:disabled|polling))|link_downed *[:=] *[1-9]"
        r"|port state changed to down|link status definitely down|cable (?:un)?plugged"
        r"|port module event.*(?:error|unplugged|disabled)"
        r"|lost carrier|no carrier|lost the link|(?:link|carrier) (?:is )?lost\b",
        Standing.CAUSE,
        _FIRST,
        "a training port went down; the first time is tolerated",
        _DRIVERS,
        (
            "mlx5_core 0000:9a:00.0 ens108np0: Link down",
            "link mlx5_2/1 state DOWN physical_state POLLING",
        ),
    ),
    Rule(
        "adapter stalls",
        r"\b(?:mlx\d|bnxt|ice|irdma|hfi1|efa|ib)(?:_\w+|\d)?\b.*(?:tx timeout|command timeout"
        r"|timed out.*cmd|cmd.*timed? ?out"
        r"|reset(?:ting)? (?:adapter|device)|error recovery)",
        Standing.SIGN,
        _UNSURE,
        "an adapter does not finish what it was given",
        _DRIVERS,
        ("mlx5_core 0000:9a:00.0 eth0: TX timeout detected",),
    ),
    Rule(
        "link errors",
        r"(?:symbol_?error\w*|link_?error_?recovery|port_?rcv_?errors|rx_crc_errors\w*"
        r"|local_link_integrity\w*"
        r"|excessive_buffer_overrun\w*) *[:=]+ *[1-9]\d{3,}|excessive (?:bit|symbol) error",
        Standing.SIGN,
        _UNSURE,
        "a port counts errors",
        _DRIVERS,
        ("mlx5_3/1 symbol_error_counter: 65535",),
    ),
)
