"""What the tests of RSM through a bad connection share."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from services.api.errors import RetriableRemoteStorageError
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.harness.eventually import eventually_holds
from tests.harness.http_proxy import HttpProxy

IDEMPOTENT = frozenset(
    {
        "AbortMultipartUpload",
        "DeleteObjects",
        "GetObject",
        "HeadBucket",
        "ListMultipartUploads",
        "ListObjectsV2",
        "PutObject",
        "UploadPart",
    }
)
"""The requests that RSM repeats even where the store may have carried them out."""

SILENCE_MS = 5_000
"""How long RSM waits for a store that is silent, where a test makes it so. One that is merely slow
must have answered by then."""


@contextmanager
def rsm_behind(
    proxy: HttpProxy, settings: RsmSettings, *, retries: int, read_timeout_ms: int = 30_000
) -> Iterator[ObjectRemoteStorageManager]:
    """RSM that sees the store through `proxy`; what it asks of it once is asked already, and again
    where the store was too slow for it."""
    changes = {"endpoint": proxy.address, "retries": retries, "read_timeout_ms": read_timeout_ms}
    with closing(build_manager(settings.model_copy(update=changes))) as manager:

        def is_checked() -> None:
            try:
                manager.check()
            except RetriableRemoteStorageError as e:
                raise AssertionError(f"not ready: {e}") from e

        eventually_holds(is_checked)
        yield manager
