"""Checkpoints: of another model, written in part, or not written."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_BROKEN = Reading(Symptom.CHECKPOINT_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_SHAPE = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.8)
_SAVING = Reading(Symptom.JOB_HANG, Label.STORAGE, Action.RETRY, 0.4)

RULES: tuple[Rule, ...] = (
    Rule(
        "checkpoint does not fit",
        r"weights only load failed|size mismatch for |(?:missing"
        r"|unexpected) key\(?s?\)? in (?:the )?(?:state|source"
        r"|loaded|model)"
        r"|error\(s\) in loading state_dict|different number of parameter groups"
        r"|loaded state dict|parameter group that doesn't match|shape mismatch.*(?:checkpoint|load)"
        r"|(?:world|tp|pp|dp|tensor|pipeline)[\w -]*size.*(?:checkpoint|saved)"
        r"|zero3?.*checkpoint.*(?:rank|dp)",
        Standing.CAUSE,
        _SHAPE,
        "the checkpoint is of another model or layout",
        "torch: Module.load_state_dict",
        (
            "        size mismatch for lm_head.weight: copying a param with shape torch.Size([5,"
            " 4])"
            " from checkpoint, the shape in current model is torch.Size([6, 4]).",
        ),
    ),
    Rule(
        "checkpoint broken",
        r"failed finding central directory|invalid header or archive is corrupted"
        r"|pytorchstreamreader"
        r"|unexpected eof, expected|pickle data was truncated|ran out of input|safetensorerror"
        r"|error while deserializing header|invalidheader|checksum mismatch|corrupt\w* checkpoint"
        r"|checkpoint.*(?:corrupt|incomplete|truncated|not complete|damaged|invalid)"
        r"|incomplete ?metadata"
        r"|metadataincompletebuffer|file might be corrupted|unpicklingerror|invalid magic number",
        Standing.CAUSE,
        _BROKEN,
        "a checkpoint was written only in part; an older one is sound",
        "torch: serialization; safetensors",
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central"
            " directory",
            "EOFError: Ran out of input",
        ),
    ),
    Rule(
        "checkpoint not written",
        r"pytorchstreamwriter|file write failed|(?:failed|error|unable|could not) (?:to )?(?:sav"
        r"|writ|upload)"
        r"\w* (?:\w+ ){0,3}checkpoint|checkpoint.*(?:save|write|upload)\w* (?:failed"
        r"|failures?=[1-9])"
        r"|enforce fail at inline_container|checkpointexception",
        Standing.CAUSE,
        Reading(Symptom.CHECKPOINT_ERROR, Label.STORAGE, Action.RETRY, 0.65),
        "a checkpoint could not be written",
        "torch: inline_container.cc",
        ("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0",),
    ),
    Rule(
        "saving",
        r"\bsaving\b.*(?:checkpoint|model|state)|(?:save|saving|started"
        r"|begin\w*)\W+(?:\w+ )?checkpoints?\b"
        r"|writing checkpoint|upload\w* checkpoint",
        Standing.CONTEXT,
        _SAVING,
        "a checkpoint was being written",
        "trainers' progress lines",
        ("saving checkpoint at iteration    5000 to /ckpt in torch_dist format",),
    ),
    Rule(
        "saved",
        r"(?:successfully )?(?:saved|wrote|finished saving|done saving"
        r"|uploaded)\b.*(?:checkpoint|model|state)"
        r"|checkpoints?\b.*\b(?:saved|completed|committed|done|finished)\b",
        Standing.CONTEXT,
        _SAVING,
        "a checkpoint was written",
        "trainers' progress lines",
        ("  successfully saved checkpoint from iteration    5000 to /ckpt",),
    ),
)
