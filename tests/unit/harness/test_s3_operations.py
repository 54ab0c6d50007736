import pytest

from tests.harness.http_messages import s3_operation


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("PUT", "/bucket/a/key", "PutObject"),
        ("GET", "/bucket/a/key", "GetObject"),
        ("HEAD", "/bucket/a/key", "HeadObject"),
        ("DELETE", "/bucket/a/key", "DeleteObject"),
        ("POST", "/bucket?delete=", "DeleteObjects"),
        ("POST", "/bucket/a/key?uploads=", "CreateMultipartUpload"),
        ("PUT", "/bucket/a/key?partNumber=1&uploadId=x", "UploadPart"),
        ("POST", "/bucket/a/key?uploadId=x", "CompleteMultipartUpload"),
        ("DELETE", "/bucket/a/key?uploadId=x", "AbortMultipartUpload"),
        ("GET", "/bucket?list-type=2&prefix=a", "ListObjectsV2"),
        ("GET", "/bucket?uploads", "ListMultipartUploads"),
        ("PUT", "/bucket", "PutBucket"),
        ("HEAD", "/bucket/", "HeadBucket"),
    ],
)
def test_an_operation_is_derived_from_method_and_target(
    method: str, target: str, operation: str
) -> None:
    assert s3_operation(method, target) == operation
