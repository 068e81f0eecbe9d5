"""Loss, gradients and loss scale."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_NAN = Reading(Symptom.NAN, Label.UNKNOWN, Action.CHECK, 0.45)
_RERUN_DIFFERS = Reading(Symptom.NAN, Label.GPU_HARDWARE, Action.CHECK, 0.65)
_RERUN_AGREES = Reading(Symptom.NAN, Label.USER_CODE, Action.ROLLBACK, 0.65)
_SCALE = Reading(Symptom.NAN, Label.USER_CODE, Action.ROLLBACK, 0.6)
_SPIKE = Reading(Symptom.LOSS_SPIKE, Label.UNKNOWN, Action.CHECK, 0.4)
_SLOW = Reading(Symptom.MFU_DECLINE, Label.UNKNOWN, Action.CHECK, 0.4)
_RERUN = "Megatron-LM: rerun_state_machine.py"
_TRAINERS = "Megatron-LM, DeepSpeed, NeMo, Lightning: messages"

RULES: tuple[Rule, ...] = (
    Rule(
        "scale exhausted",
        r"loss scale already at minimum|minimum loss scale reached|loss scale.*(?:too small"
        r"|underflow)"
        r"|cannot decrease scale",
        Standing.CAUSE,
        _SCALE,
        "no loss scale is small enough: the numbers themselves diverge",
        "DeepSpeed: loss_scaler.py; fairseq: dynamic_loss_scaler.py",
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.",),
    ),
    Rule(
        "overflow",
        r"overflow.*(?:skipping|loss scale|reducing)|gradient overflow|grad(?:ient)? overflow",
        Standing.CONTEXT,
        _SCALE,
        "the loss scale is too large for this step; the step is skipped",
        "DeepSpeed, apex: dynamic loss scaling",
        (
            "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to"
            " 32768",
        ),
    ),
    Rule(
        "rerun differs",
        r"not reproducible on a different gpu|possible (?:persistent|transient) error"
        r"|rerun: unexpected result is not reproducible",
        Standing.CAUSE,
        _RERUN_DIFFERS,
        "the same sum gave another result; the log names the machine that summed last, which need"
        " not be the one that was wrong",
        _RERUN,
        ("ERROR:rerun_state_machine:Rank 3, node b, device 3: Possible persistent error!!",),
    ),
    Rule(
        "rerun agrees",
        r"rerun: unexpected result is reproducible on a different gpu|possible application error",
        Standing.CAUSE,
        _RERUN_AGREES,
        "two GPUs agree on the result, so the program or its data made it",
        _RERUN,
        ("Rank 3, node b, device 3: Correct result (but possible Application error) (x)!",),
    ),
    Rule(
        "not a number",
        r"(?:found|detected|encountered|got|is|contains|becomes?|became|returned|with"
        r"|are) (?:a )?\[?\(?"
        r"(?:\d+ )?(?:nan|inf)\b|(?:loss|norm|grad\w*|lm loss|ppl|perplexity"
        r"|val\w*)\W{0,4}[:= ]\W{0,3}(?:nan|-?inf)\b"
        r"|nan(?:/inf)? (?:in|loss|grad|or inf|detected|found|values?)\b|non-?finite"
        r"|floatingpointerror"
        r"|\bisnan\b|tensor\((?:nan|inf)|probability tensor contains|returned nan values"
        r"|number of nan iterations: +[1-9]|inf or nan",
        Standing.SIGN,
        _NAN,
        "a number of the training is not a number",
        _TRAINERS,
        (
            " iteration 12/ 500 | lm loss: nan | grad norm: nan |",
            "AssertionError: Rank 3: found NaN in local grad norm in backward pass",
            "{'loss': nan, 'grad_norm': nan, 'learning_rate': 1e-05}",
        ),
    ),
    Rule(
        "loss jumped",
        r"(?:loss|grad\w*(?: norm)?)\b.*\b(?:spik\w+|explod\w+|diverg\w+|jump\w*)|(?:spike"
        r"|divergence) detected",
        Standing.SIGN,
        _SPIKE,
        "loss or gradient norm jumped",
        _TRAINERS,
        ("WARNING loss spike: 2.1 -> 11.7 at step 88",),
    ),
    Rule(
        "slow",
        r"\bstraggler|(?:mfu|throughput|tflops?|tokens/s\w*)\b.*\b(?:drop\w*|declin\w+"
        r"|decreas\w+|degrad\w+|fell)\b",
        Standing.SIGN,
        _SLOW,
        "the job is slower than it was",
        _TRAINERS,
        ("WARNING throughput dropped from 410 to 260 TFLOPS",),
    ),
)
