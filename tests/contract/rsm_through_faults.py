"""Share the basics of the tests of RSM through a bad connection."""

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
"""The requests that RSM retries even if the store may have carried them out."""

SILENCE_MS = 5_000
"""How long RSM waits for a silent store if a test sets it. A store that is merely slow must respond
within this time.
"""


@contextmanager
def rsm_behind(
    proxy: HttpProxy, settings: RsmSettings, *, retries: int, read_timeout_ms: int = 30_000
) -> Iterator[ObjectRemoteStorageManager]:
    """Yield an RSM that reaches the store through `proxy`.

    RSM has already sent its one-time requests, repeated if the store was too slow.
    """
    changes = {"endpoint": proxy.address, "retries": retries, "read_timeout_ms": read_timeout_ms}
    with closing(build_manager(settings.model_copy(update=changes))) as manager:

        def is_checked() -> None:
            try:
                manager.check()
            except RetriableRemoteStorageError as e:
                raise AssertionError(f"not ready: {e}") from e

        eventually_holds(is_checked)
        yield manager
