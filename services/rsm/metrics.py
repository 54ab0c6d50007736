"""Count and time RSM's requests to its stores, and publish the use of its part buffers."""

import errno
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar

from prometheus_client import Counter, Gauge, Histogram

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.protocol import (
    SignedUrl,
    StorageBackend,
    StoredObject,
    Upload,
    had_no_answer,
)
from services.rsm.upload import PartBuffers

P = ParamSpec("P")
T = TypeVar("T")

Operation: TypeAlias = Literal["check", "get", "fetch", "put", "upload", "list", "delete"]

Result: TypeAlias = Literal[
    "ok", "not_found", "corrupt", "denied", "no_store", "no_answer", "unavailable", "full", "failed"
]

INDEX_REBUILDS = Counter(
    "sediment_rsm_index_rebuilds",
    "Indexes that RSM rebuilt for a reader, because the store had lost or damaged them, by index.",
    ("index",),
)

STORE_SECONDS = Histogram(
    "sediment_rsm_store_seconds",
    "Duration of RSM's work in its stores, with retries, by operation and result. Operation: "
    "check, get (a small object), fetch (bytes of an object; the time of its reader is not "
    "counted), put, upload (each step of an upload in parts), list, delete. Result: ok, not_found, "
    "corrupt (an object is shorter or larger than it was), denied, no_store (no such bucket or "
    "directory), no_answer, unavailable (the store asks to retry), full (no space, as far as the "
    "store says so), failed.",
    ("operation", "result"),
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)

LAST_SUCCESS = Gauge(
    "sediment_rsm_store_last_success_timestamp_seconds",
    "When a store last did what RSM asked, Unix time; the start of the process, if none ever did. "
    "RSM asks at least once a second.",
)
LAST_SUCCESS.set_to_current_time()

BUFFERS_IN_USE = Gauge(
    "sediment_rsm_part_buffers_in_use", "Buffers of RSM_PART_BUFFERS that copies use."
)
BUFFERS_LIMIT = Gauge("sediment_rsm_part_buffers_limit", "Buffers that copies may use.")
BUFFERS_WAITING = Gauge("sediment_rsm_part_buffers_waiting", "Copies that wait for a part buffer.")

_RESULTS: tuple[tuple[type[RemoteStorageError], Result], ...] = (
    (RemoteResourceNotFoundError, "not_found"),
    (CorruptSegmentError, "corrupt"),
    (StoreAccessDeniedError, "denied"),
    (StoreNotFoundError, "no_store"),
    (RetriableRemoteStorageError, "unavailable"),
)

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def publish_part_buffers(buffers: PartBuffers) -> None:
    """Publish the use of the buffers, as it is at each scrape."""
    BUFFERS_IN_USE.set_function(lambda: buffers.in_use)
    BUFFERS_LIMIT.set_function(lambda: buffers.count)
    BUFFERS_WAITING.set_function(lambda: buffers.waiting)


def _measured(
    operation: Operation, method: Callable[Concatenate[Any, P], T]
) -> Callable[Concatenate["MeasuredStorage", P], T]:
    """Return the measured method for a method of StorageBackend."""

    def call(storage: "MeasuredStorage", /, *args: P.args, **kwargs: P.kwargs) -> T:
        began_s = time.perf_counter()
        error: Exception | None = None
        try:
            result: T = getattr(storage.backend, method.__name__)(*args, **kwargs)
            return result
        except Exception as e:
            error = e
            raise
        finally:
            _observe(operation, time.perf_counter() - began_s, error)

    return call


class MeasuredStorage:
    """A StorageBackend that counts and times what another one does."""

    def __init__(self, backend: StorageBackend) -> None:
        self.backend = backend

    check_and_get = _measured("check", StorageBackend.check_and_get)
    put = _measured("put", StorageBackend.put)
    put_if_absent = _measured("put", StorageBackend.put_if_absent)
    put_if_match = _measured("put", StorageBackend.put_if_match)
    begin_upload = _measured("upload", StorageBackend.begin_upload)
    upload_part = _measured("upload", StorageBackend.upload_part)
    complete_upload = _measured("upload", StorageBackend.complete_upload)
    abort_upload = _measured("upload", StorageBackend.abort_upload)
    get = _measured("get", StorageBackend.get)
    describe = _measured("get", StorageBackend.describe)

    def fetch(self, key: str, start: int, end: int) -> Generator[bytes, None, None]:
        return _each_measured("fetch", self.backend.fetch(key, start, end))

    def presign(self, key: str, valid_s: int) -> SignedUrl | None:
        return self.backend.presign(key, valid_s)

    def list_objects(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        return _each_measured("list", self.backend.list_objects(prefix, after))

    def list_uploads(self, prefix: str) -> Iterator[Upload]:
        return _each_measured("list", self.backend.list_uploads(prefix))

    def delete(self, keys: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        began_s = time.perf_counter()
        failures = self.backend.delete(keys)
        first = next(iter(failures.values()), None)
        _observe("delete", time.perf_counter() - began_s, first)
        return failures


def _each_measured(operation: Operation, items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items, and count the time that the store took for them.

    A reader that leaves early ends the work, which counts as done.
    """
    took_s = 0.0
    error: Exception | None = None
    try:
        while True:
            began_s = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                took_s += time.perf_counter() - began_s
            yield item
    except Exception as e:
        error = e
        raise
    finally:
        if isinstance(items, Generator):
            items.close()
        _observe(operation, took_s, error)


def _observe(operation: Operation, took_s: float, error: Exception | None) -> None:
    result = _result_of(error)
    STORE_SECONDS.labels(operation, result).observe(took_s)
    if result in ("ok", "not_found"):
        LAST_SUCCESS.set(time.time())


def _result_of(error: Exception | None) -> Result:
    """Return the class of an error, None if there was none."""
    if error is None:
        return "ok"
    if not isinstance(error, RemoteStorageError):
        return "failed"  # a defect of ours
    cause = error.__cause__
    if had_no_answer(error):
        return "no_answer"
    if isinstance(cause, OSError) and cause.errno in _FULL:
        return "full"
    return next((result for kind, result in _RESULTS if isinstance(error, kind)), "failed")
