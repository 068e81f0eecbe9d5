"""Files of the data set that do not hold what they should."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_SAMPLE = Reading(Symptom.DATA_ERROR, Label.DATA, Action.FIX_DATA, 0.8)

RULES: tuple[Rule, ...] = (
    Rule(
        "sample broken",
        r"compressed file ended before|end-of-stream marker|cannot identify image"
        r"|image file is truncated|broken data stream|unidentifiedimageerror"
        r"|decompress(?:ion)?bomb|error -\d while decompressing|incorrect (?:header|data) check"
        r"|badgzipfile"
        r"|crc check failed|bad crc-32|badzipfile|file is not a zip|tarfile\.\w*error"
        r"|jsondecodeerror"
        r"|unicodedecodeerror|arrowinvalid|not a parquet file|parquet magic bytes|invalid utf-8"
        r"|corrupt (?:snappy|jpeg|record|shard|data|file)|premature end of (?:jpeg|file)"
        r"|datalosserror"
        r"|invalid data found when processing|corrupt\w* (?:dataset|sample|record|shard|image"
        r"|video)"
        r"|(?:dataset|sample|record|shard|tfrecord).*(?:corrupt|truncated|malformed)"
        r"|datasetgenerationerror"
        r"|not in gzip format|moov atom not found|invalid (?:wav|flac|video|audio|image)",
        Standing.CAUSE,
        _SAMPLE,
        "a file of the data set does not hold what it should",
        "Pillow, zlib, json, pyarrow, tarfile, FFmpeg: messages",
        (
            "PIL.UnidentifiedImageError: cannot identify image file 'a.jpg'",
            "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
            "zlib.error: Error -3 while decompressing data: invalid block type",
        ),
    ),
)
