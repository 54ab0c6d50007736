"""Share the basics of the tests of RSM through a bad connection."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from services.api.errors import RemoteResourceNotFoundError, RetriableRemoteStorageError
from services.api.remote_storage_manager import IndexType
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    MIB,
    Files,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.harness.eventually import eventually_holds
from tests.harness.faults import Answer, Cut, Delay, Direction, Faults, Reset, Throttle
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

Weather = Callable[[Faults], None]


def weather_of(repeated: frozenset[str], write: str) -> dict[str, Weather]:
    """Return what no caller may notice of a store.

    Args:
        repeated: the requests that are sent again though the store may have carried them out.
        write: the request that sends an object, or a part.
    """
    return {
        "high latency": lambda faults: faults.add(Delay(40, jitter_ms=80), times=None),
        "little bandwidth": lambda faults: faults.add(Throttle(20 * MIB), times=None),
        "many 503": lambda faults: faults.storm(Answer(503), 0.3),
        "many resets of requests": lambda faults: faults.storm(
            Reset(None, Direction.REQUEST), 0.3, operations=repeated
        ),
        "many answers lost": lambda faults: faults.storm(
            Reset(None, Direction.RESPONSE), 0.3, operations=repeated
        ),
        "bodies reset in the middle": lambda faults: faults.add(
            Reset(MIB, Direction.REQUEST), operation=write, times=3
        ),
        "bodies cut off in the middle": lambda faults: faults.add(
            Cut(MIB, Direction.REQUEST), operation=write, times=3
        ),
    }


def assert_survives(rsm: ObjectRemoteStorageManager, proxy: HttpProxy, weather: Weather) -> None:
    """Copy, read and delete a segment in this weather."""
    files = Files(some_bytes(LARGE))
    weather(proxy.faults)
    try:
        metadata = copied(rsm, files)
        assert fetched(rsm, metadata) == files.log
        kind = IndexType.TIMESTAMP
        assert index(rsm, metadata, kind) == files.indexes[kind]
        rsm.delete_log_segment_data(metadata)
    finally:
        proxy.faults.clear()
    with pytest.raises(RemoteResourceNotFoundError):
        fetched(rsm, metadata)


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
