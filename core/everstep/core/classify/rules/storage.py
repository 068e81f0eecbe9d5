"""Files, file systems, object stores and checkpoints: errno names first, then each service."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_ERRNO = "errno(3)"
_FULL = Reading(Symptom.DISK_FULL, Label.STORAGE, Action.RETRY, 0.85)
_REMOTE = Reading(Symptom.STORAGE_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_READ_ONLY = Reading(Symptom.STORAGE_ERROR, Label.HOST, Action.CHECK, 0.5)
_BROKEN = Reading(Symptom.CHECKPOINT_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_SHAPE = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.8)
_RIGHTS = Reading(Symptom.STORAGE_ERROR, Label.MANUAL, Action.ROLLBACK, 0.6)
_LIMIT = Reading(Symptom.CODE_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.65)
_SERVICE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.RETRY, 0.65)
_SAMPLE = Reading(Symptom.DATA_ERROR, Label.DATA, Action.FIX_DATA, 0.8)
_SAVING = Reading(Symptom.JOB_HANG, Label.STORAGE, Action.RETRY, 0.4)

RULES: tuple[Rule, ...] = (
    Rule(
        "no space",
        r"no space left on device|enospc|errno 28\b|disk quota exceeded|edquot|errno 122\b"
        r"|disk (?:is )?full|diskpressure|low on resource: ephemeral-storage"
        r"|not enough (?:free )?disk"
        r"|quota (?:has been )?exceeded|out of disk space|file system full",
        Standing.PROOF,
        _FULL,
        "a disk or a quota is full",
        _ERRNO + ": ENOSPC, EDQUOT; Kubernetes: node-pressure eviction",
        (
            "OSError: [Errno 28] No space left on device: '/data/ckpt/7.pt'",
            "OSError: [Errno 122] Disk quota exceeded",
        ),
    ),
    Rule(
        "read-only file system",
        r"read-only file system|erofs|errno 30\b",
        Standing.CAUSE,
        _READ_ONLY,
        "a file system refuses writes: mounted so, or after an error of its disk",
        _ERRNO + ": EROFS",
        ("OSError: [Errno 30] Read-only file system: '/data/out'",),
    ),
    Rule(
        "file server",
        r"stale file handle|estale|errno 116\b|transport endpoint is not connected|errno 107\b"
        r"|remote i/o error|errno 121\b|errno 110\b|input/output error|errno 5\b|\beio\b"
        r"|software caused connection abort.*(?:/|mount)|host is down|errno 112\b|errno 108\b"
        r"|cannot send after transport endpoint shutdown|resource temporarily unavailable: '/"
        r"|mount\.\w+: .*(?:failed|timed out|denied|error)|bus error.*mmap|errno 103\b.*'/",
        Standing.CAUSE,
        _REMOTE,
        "a file system failed under the program",
        _ERRNO + ": ESTALE, ENOTCONN, EREMOTEIO, EIO, ETIMEDOUT, ESHUTDOWN",
        (
            "OSError: [Errno 116] Stale file handle",
            "OSError: [Errno 5] Input/output error: '/d/x'",
            "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/fuse'",
        ),
    ),
    Rule(
        "object store access",
        r"accessdenied|access denied|expiredtoken|invalidaccesskey|signaturedoesnotmatch"
        r"|nocredentialserror|unable to locate credentials|nosuchbucket|invalidregion"
        r"|authenticationfailed"
        r"|(?:401|403) (?:client error|forbidden|unauthorized)|gated repo|permission denied"
        r"|errno 13\b",
        Standing.SIGN,
        _RIGHTS,
        "the job has no right to what it asks for",
        "AWS S3 API: error codes; EACCES",
        (
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling"
            " PutObject",
        ),
    ),
    Rule(
        "object store busy",
        r"slowdown|reduce your request rate|serviceunavailable|internalerror.*(?:s3|object)"
        r"|requesttimeout"
        r"|(?:500|502|503|504) (?:server error|service|bad gateway|gateway|internal)"
        r"|toomanyrequests"
        r"|429 (?:client|too many)|(?:endpointconnection|connecttimeout|readtimeout)error"
        r"|(?:s3|gcs|gs|oss|hdfs|blob|minio|azure)\b.*(?:timed? ?out|timeout|unavailable|reset"
        r"|fail)"
        r"|curl\w*\b.*(?:timeout was reached|timed? ?out|too slow)"
        r"|operation too slow\. less than|curle_\w+"
        r"|incompletebody|responsestreamingerror|aws_error|awserror|botocore\.exceptions"
        r"|multipart.*(?:fail|error|abort)|checksum.*s3|fsspec.*(?:error|exception)|s3fs.*error",
        Standing.CAUSE,
        _REMOTE,
        "the object store did not serve a request",
        "AWS S3 and Google Cloud Storage: error codes",
        ("botocore.exceptions.ClientError: An error occurred (SlowDown) when calling GetObject",),
    ),
    Rule(
        "hdfs",
        r"safemodeexception|name ?node is in safe mode|blockmissingexception|could not obtain block"
        r"|org\.apache\.hadoop|hdfs\S*exception|lease(?:expired)?exception|no datanode"
        r"|all datanodes",
        Standing.CAUSE,
        _REMOTE,
        "HDFS did not serve a request",
        "Apache Hadoop: HDFS user guide",
        ("org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block: BP-1",),
    ),
    Rule(
        "service not reached",
        r"max retries exceeded with url|(?:http|https"
        r"|read) ?(?:connection)?(?:pool)?\(.*timed? ?out"
        r"|localentrynotfounderror|couldn't connect to '?https?|remotedisconnected"
        r"|newconnectionerror"
        r"|requests\.exceptions\.|urllib3\.exceptions\.|httpx\.\w*(?:timeout|error)|sslerror",
        Standing.CAUSE,
        _SERVICE,
        "a service outside the job did not answer",
        "requests and urllib3: exceptions",
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max"
            " retries exceeded with url: /x",
        ),
    ),
    Rule(
        "open files",
        r"too many open files|emfile|errno 24\b|received 0 items of ancdata|file name too long",
        Standing.CAUSE,
        _LIMIT,
        "the process holds more files than it may",
        _ERRNO + ": EMFILE; torch: multiprocessing sharing strategies",
        ("OSError: [Errno 24] Too many open files: '/d/1'",),
    ),
    Rule(
        "checkpoint does not fit",
        r"size mismatch for |(?:missing|unexpected) key\(?s?\)? in (?:the )?(?:state|source"
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
        "sample broken",
        r"cannot identify image|image file is truncated|broken data stream|unidentifiedimageerror"
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
