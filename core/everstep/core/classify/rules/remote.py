"""Object stores, distributed file systems and services outside the job."""

from __future__ import annotations

from everstep.core.classify.names import Action, Label, Symptom
from everstep.core.classify.rule import Reading, Rule, Standing

_REMOTE = Reading(Symptom.STORAGE_ERROR, Label.STORAGE, Action.RETRY, 0.75)
_RIGHTS = Reading(Symptom.STORAGE_ERROR, Label.MANUAL, Action.ROLLBACK, 0.6)
_IMAGE = Reading(Symptom.CONTAINER_ERROR, Label.USER_CODE, Action.ROLLBACK, 0.7)
_SERVICE = Reading(Symptom.NETWORK_ERROR, Label.NETWORK, Action.RETRY, 0.65)

RULES: tuple[Rule, ...] = (
    Rule(
        "object store access",
        r"an error occurred \(40[013]\)|\bforbidden\b|unauthorized|accessdenied|access denied"
        r"|expiredtoken|invalidaccesskey|signaturedoesnotmatch"
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
        r"\(slowdown\)|slowdown: |reduce your request rate|slow_?down\b.*s3|serviceunavailable"
        r"|internalerror.*(?:s3|object)"
        r"|requesttimeout"
        r"|(?:500|502|503|504) (?:server error|service|bad gateway|gateway|internal)"
        r"|toomanyrequests"
        r"|429 (?:client|too many)|(?:endpointconnection|connecttimeout|readtimeout)error"
        r"|\b(?:s3|gcs|gs|oss|hdfs|blob|minio|azure)\b.*(?:timed? ?out|timeout|unavailable|reset"
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
        "java classes missing",
        r"noclassdeffounderror|classnotfoundexception|unable to load libjvm"
        r"|libhdfs\S*: cannot open",
        Standing.CAUSE,
        _IMAGE,
        "the image or its CLASSPATH lacks what the client of the file system needs",
        "Apache Hadoop: libhdfs; Arrow: HadoopFileSystem",
        ("(unable to get root cause for java.lang.NoClassDefFoundError)",),
    ),
    Rule(
        "hdfs",
        r"safemodeexception|standbyexception|name ?node is in safe mode|blockmissingexception"
        r"|could not obtain block"
        r"|org\.apache\.hadoop|hdfs\S*exception|lease(?:expired)?exception|no datanode"
        r"|all datanodes|bad datanode|good datanodes|could only be (?:replicated|written) to \d",
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
)
