"""Test which of our errors a store's response becomes."""

import pytest

from services.api.errors import (
    BodyTooLargeError,
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.s3_retry import error_for, s3_errors


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("SlowDown", 503, RetriableRemoteStorageError),
        ("RequestTimeTooSkewed", 403, RetriableRemoteStorageError),
        ("SlowDown", 200, RetriableRemoteStorageError),
        ("SlowDownRead", 200, RetriableRemoteStorageError),
        ("SlowDownWrite", 200, RetriableRemoteStorageError),
        ("InternalError", 200, RetriableRemoteStorageError),
        ("ServiceUnavailable", 200, RetriableRemoteStorageError),
        ("RequestLimitExceeded", 400, RetriableRemoteStorageError),
        ("ServerBusy", 200, RetriableRemoteStorageError),
        ("TooManyRequests", 400, RetriableRemoteStorageError),
        (None, 303, RetriableRemoteStorageError),
        ("TemporaryRedirect", 307, RetriableRemoteStorageError),
        (None, 500, RetriableRemoteStorageError),
        (None, 502, RetriableRemoteStorageError),
        (None, 507, RetriableRemoteStorageError),
        (None, 429, RetriableRemoteStorageError),
        ("RequestTimeout", 400, RetriableRemoteStorageError),
        (None, 408, RetriableRemoteStorageError),
        # Of SeaweedFS and of MinIO, about a body that did not arrive as it was sent.
        ("ClientDisconnected", 499, RetriableRemoteStorageError),
        ("BadDigest", 400, RetriableRemoteStorageError),
        ("IncompleteBody", 400, RetriableRemoteStorageError),
        ("MalformedXML", 400, RetriableRemoteStorageError),
        ("XAmzContentChecksumMismatch", 400, RetriableRemoteStorageError),
        ("XAmzContentSHA256Mismatch", 400, RetriableRemoteStorageError),
        ("NoSuchUpload", 404, RetriableRemoteStorageError),
        ("InvalidPart", 400, RetriableRemoteStorageError),
        ("NoSuchKey", 404, RemoteResourceNotFoundError),
        ("InvalidRange", 416, CorruptSegmentError),
        ("NoSuchBucket", 404, StoreNotFoundError),
        ("AccessDenied", 403, StoreAccessDeniedError),
        ("InvalidAccessKeyId", 403, StoreAccessDeniedError),
        ("SignatureDoesNotMatch", 403, StoreAccessDeniedError),
        (None, 403, StoreAccessDeniedError),
        ("InvalidObjectState", 403, RemoteStorageError),
        ("NotImplemented", 501, RemoteStorageError),
        (None, 413, BodyTooLargeError),
        (None, 400, RemoteStorageError),
    ],
)
def test_an_answer_is_described_by_code_and_status(
    code: str | None, status: int, error: type[RemoteStorageError]
) -> None:
    assert type(error_for(code, status, "PUT a/key")) is error


@pytest.mark.parametrize(
    ("code", "status", "advice"),
    [
        ("InvalidObjectState", 403, "the object is archived: restore it in the store"),
        ("InvalidStorageClass", 400, "correct storage_class of the location"),
        ("KMS.NotFoundException", 400, "correct sse_kms_key_id of the location"),
        ("KMS.DisabledException", 400, "enable the key that sse_kms_key_id"),
        ("AccessDenied", 403, "if it demands encryption, set sse of the location"),
        (None, 407, "correct the proxy_credentials_file of the location"),
    ],
)
def test_an_error_says_what_to_do_next(code: str | None, status: int, advice: str) -> None:
    assert advice in str(error_for(code, status, "PUT a/key"))


def test_request_refused_by_the_sdk_keeps_its_message() -> None:
    with (
        pytest.raises(RetriableRemoteStorageError, match=r"listing tier/: .*invalid bucket name"),
        s3_errors("listing tier/"),
    ):
        raise ValueError("invalid bucket name a..b")
