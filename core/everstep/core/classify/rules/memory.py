"""Memory, processors and buses that report errors: corrected ones ask for nothing."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import QUIET, Reading, Rule, Standing

_LINUX = "Linux kernel source and admin guide"
_MEMORY = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.9)
_BUS = Reading(Symptom.OS_KERNEL_FAULT, Label.HOST, Action.EVICT, 0.75)

RULES: tuple[Rule, ...] = (
    Rule(
        "memory corrected",
        r"\b\d+ ce\b.*(?:memory|error)|\bce (?:memory \w+ )?error"
        r"|\bcorrected (?:(?:hardware |memory )+|read |write |scrub )?error|\bcorrected_error"
        r"|corrected by h/w|type: corrected|single-bit ecc|\bbeen corrected\b"
        r"|mce: .*\bcorrected\b(?<!uncorrected)"
        r"|(?:handling mce|machine check events logged)|storage error in dram"
        r"|hardware error from apei"
        r"|severity[=:] ?corrected|corrected error, no action required|cmci storm"
        r"|event severity: (?:corrected|info)|\bcorrectable\b|mce_notify_irq",
        Standing.CONTEXT,
        QUIET,
        "an error that the hardware corrected",
        _LINUX + ": EDAC, RAS",
        (
            "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1)",
            "{2}[Hardware Error]: event severity: corrected",
            "mce: CMCI storm detected: switching to poll mode",
        ),
    ),
    Rule(
        "memory uncorrected",
        r"\b[1-9]\d* ue\b.*(?:memory|error|on )|(?<!0 )\bue (?:memory \w+ )?error|uncorrect(?:ed"
        r"|able) (?:hardware "
        r"|memory )"
        r"|memory failure: 0x|hardware memory corruption|uncorrected[ _]error|uncorrectable error"
        r"|uncorrectable ecc",
        Standing.PROOF,
        _MEMORY,
        "the machine's memory has an error that cannot be corrected",
        _LINUX + ": EDAC, hwpoison",
        (
            "EDAC MC1: 2 UE memory scrubbing error on CPU_SrcID#0_MC#1_Chan#0_DIMM#1",
            "Memory failure: 0x1f3b2: Killing python:77 due to hardware memory corruption",
        ),
    ),
    Rule(
        "machine check fatal",
        r"fatal machine check|processor context corrupt|timeout: not all cpus entered"
        r"|event severity: (?:fatal|recoverable)|machine check: processor context"
        r"|machine check exception: (?!0 )",
        Standing.PROOF,
        _MEMORY,
        "the processor found an error that it could not correct",
        _LINUX + ": arch/x86 machine check; ACPI APEI",
        (
            "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400",
            "{1}[Hardware Error]: event severity: fatal",
        ),
    ),
    Rule(
        "machine check status",
        r"machine check(?: event)?: \d+ bank \d+: [0-9a-f]{16}",
        Standing.CONTEXT,
        QUIET,
        "a machine check bank; its bit 61 tells corrected from uncorrected",
        "Intel SDM vol. 3B: IA32_MCi_STATUS",
        ("EDAC skx MC1: CPU 3: Machine Check Event: 0 Bank 7: 8c00004000010090",),
    ),
    Rule(
        "pcie uncorrected",
        r"pcie bus error: severity=uncorrected|uncorrected \((?:non-)?fatal\)"
        r"|dpc: containment event|uncorrect(?:ed|able) \((?:non-)?fatal\)"
        r"|aer: (?:multiple )?uncorrect"
        r"|aer: uncorrected|pcie link.*lost|pcie.*surprise (?:link )?down",
        Standing.PROOF,
        _BUS,
        "PCIe lost or damaged a transaction",
        _LINUX + ": PCIe AER",
        ("pcieport 0000:17:01.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=TLP",),
    ),
    Rule(
        "processor hot",
        r"cpu\d*: (?:core|package) temperature.*throttled|cpu clock throttled",
        Standing.SIGN,
        Reading(Symptom.MFU_DECLINE, Label.HOST, Action.CHECK, 0.5),
        "a processor slows itself down for heat",
        _LINUX + ": x86 thermal interrupt",
        ("CPU12: Package temperature above threshold, cpu clock throttled (total events = 3)",),
    ),
)
