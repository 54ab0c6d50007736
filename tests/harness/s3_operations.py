"""Name S3 operations by their HTTP requests, as S3 itself does."""

from urllib.parse import parse_qs, urlsplit

# The operations that a query parameter selects by method, before the path is considered.
_BY_PARAMETER = {
    ("POST", "uploads"): "CreateMultipartUpload",
    ("POST", "uploadId"): "CompleteMultipartUpload",
    ("POST", "delete"): "DeleteObjects",
    ("PUT", "uploadId"): "UploadPart",
    ("DELETE", "uploadId"): "AbortMultipartUpload",
    ("GET", "uploadId"): "ListParts",
    ("GET", "uploads"): "ListMultipartUploads",
    ("GET", "location"): "GetBucketLocation",
    ("GET", "lifecycle"): "GetBucketLifecycleConfiguration",
    ("GET", "versioning"): "GetBucketVersioning",
    ("GET", "object-lock"): "GetObjectLockConfiguration",
    ("GET", "list-type"): "ListObjectsV2",
}


def s3_operation(method: str, target: str) -> str:
    """Name an operation: `s3_operation("PUT", "/b/key?uploadId=1&partNumber=2")` is
    "UploadPart".
    """
    parts = urlsplit(target)
    for parameter in parse_qs(parts.query, keep_blank_values=True):
        if (method, parameter) in _BY_PARAMETER:
            return _BY_PARAMETER[method, parameter]
    _, _, key = parts.path.lstrip("/").partition("/")
    noun = "Object" if key else "Bucket"
    if (method, noun) == ("GET", "Bucket"):
        return "ListObjects"
    return f"{method.capitalize()}{noun}"
