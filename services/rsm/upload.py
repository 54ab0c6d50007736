"""Write an object of known size in bounded memory."""

import logging
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from threading import Event, Lock

from services.api.calls import Call, current_call, serving
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.common.copied_bytes import BYTES_COPIED
from services.common.failpoints import failpoint
from services.common.fair_queue import FairQueue, Slot
from services.common.threads import started_pool
from services.rsm.active_copies import Waiter
from services.rsm.backends.protocol import Part, StorageBackend, Upload, UploadedPart
from services.rsm.deadline import cleaning_up
from services.rsm.digests import RunningDigest

MAX_PARTS = 10_000


def part_size_bytes(object_size_bytes: int, least_bytes: int) -> int:
    """Return the size of all parts but the last: `least_bytes`, or more if MAX_PARTS require it.

    S3 accepts MAX_PARTS of at least 5 MiB. A log of 2 GiB - 1 has 410 of these, so parts grow only
    in a store with smaller ones.
    """
    return max(least_bytes, -(-object_size_bytes // MAX_PARTS))


class PartBuffers:
    """A fixed number of buffers for parts; waiting for a free one is the back-pressure.

    Memory is allocated when a buffer is first needed. A copy must send its buffer before it
    acquires the next one, so that a buffer is always released. Copies get buffers in the order in
    which they wait.
    """

    def __init__(self, count: int, size_bytes: int, wait_timeout_ms: int) -> None:
        """Set the limits; allocate no buffer yet.

        Args:
            size_bytes: of every buffer, except for objects that need larger parts.
        """
        self.size_bytes = size_bytes
        self._wait_timeout_s = wait_timeout_ms / 1000
        self._queue = FairQueue(f"part buffers in use (limit {count})", count)
        self._lock = Lock()
        # All slots weigh the same, so any slot stands for any buffer.
        self._slots: list[Slot] = []
        # Last in, first out.
        self._free: list[memoryview] = []

    @property
    def count(self) -> int:
        """Return how many buffers there may be."""
        return self._queue.capacity

    @property
    def in_use(self) -> int:
        """Return how many buffers copies have."""
        return self._queue.in_use

    @property
    def waiting(self) -> int:
        """Return how many copies wait for a buffer."""
        return self._queue.waiting

    def acquire(self, size_bytes: int | None = None) -> memoryview:
        """Return a buffer of at least `size_bytes` (default: the usual size) with old bytes in it.

        Raises:
            RetriableRemoteStorageError: no buffer became free in time, since the store is too slow;
                or the caller gave up.
            MemoryError: there is not enough memory now; the buffer stays free.
        """
        size_bytes = size_bytes or self.size_bytes
        slot = self._queue.acquire(1, self._wait_timeout_s, current_call().is_active)
        with self._lock:
            free = self._free.pop() if self._free else None
        try:
            if free is None or len(free) < size_bytes:
                # Drops a smaller buffer only after the larger one is allocated.
                free = memoryview(bytearray(size_bytes))
        except MemoryError:
            with self._lock:
                self._free.extend([] if free is None else [free])
            slot.release()
            raise
        with self._lock:
            self._slots.append(slot)
        return free

    def release(self, buffer: memoryview) -> None:
        with self._lock:
            # A buffer that was made for larger parts must not stay.
            if len(buffer) == self.size_bytes:
                self._free.append(buffer)
            slot = self._slots.pop()
        slot.release()


_log = logging.getLogger(__name__)


class Uploader:
    """Write objects with the threads and buffers that all copies of a process share."""

    def __init__(
        self, backend: StorageBackend, buffers: PartBuffers, threads: int, waiter: Waiter
    ) -> None:
        self.backend = backend
        self.buffers = buffers
        self.thread_count = threads
        self.waiter = waiter
        self._closing = Event()
        self._threads = started_pool(threads, "rsm-upload")

    def to(self, backend: StorageBackend) -> "Uploader":
        """Return an uploader to another backend that shares the threads and buffers of this one."""
        other = copy(self)
        other.backend = backend
        return other

    @contextmanager
    def object(
        self, key: str, size_bytes: int, digest: RunningDigest | None = None
    ) -> Iterator["ObjectUpload"]:
        """Write an object of `size_bytes` bytes inside the block; it exists when the block ends.

        If the block raises, the upload is aborted, provided that the store can be reached within
        CLEAN_UP_S; an object that is already complete is not deleted.

        Args:
            key: no other call writes it.
            digest: every byte passes through it before it is written; the parts are checked against
                it.
        """
        upload = ObjectUpload(self, key, size_bytes, digest)
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.discard()
            raise

    def send(self, call: Call, upload: Upload, part: Part) -> "Future[UploadedPart]":
        """Write `part` on behalf of `call` when a thread is free, if the call is still active then.

        Raises:
            RetriableRemoteStorageError: after close().
        """
        self._require_open()
        return self._threads.submit(self._upload_part, call, upload, part)

    def close(self) -> None:
        """Wait for the parts in flight, each bounded by the store's timeouts; drop the others."""
        self._closing.set()
        self._threads.shutdown()

    def _upload_part(self, call: Call, upload: Upload, part: Part) -> UploadedPart:
        # Queued parts are not cancelled: a caller that waits for one would never get an error.
        self._require_open()
        if not call.is_active():
            raise RetriableRemoteStorageError("the copy that needs this part has ended")
        with serving(call):
            uploaded = self.backend.upload_part(upload, part)
        failpoint("rsm.part_written")
        return uploaded

    def _require_open(self) -> None:
        if self._closing.is_set():
            raise RetriableRemoteStorageError("the service is stopping")


class ObjectUpload:
    """Write one object: in a single request if it fits into a part, else in concurrent parts."""

    def __init__(
        self, uploader: Uploader, key: str, size_bytes: int, digest: RunningDigest | None
    ) -> None:
        self._uploader = uploader
        self._digest = digest
        self._backend = uploader.backend
        self._key = key
        self._size_bytes = size_bytes
        self._part_size_bytes = part_size_bytes(size_bytes, uploader.buffers.size_bytes)
        self._buffer: memoryview | None = None
        self._filled = 0
        self._sent = 0
        self._begun = False
        self._upload: Upload | None = None
        self._is_discarded = False
        caller_waits = current_call().is_active
        # The call for which other threads send the parts.
        self._call = replace(
            current_call(), is_active=lambda: caller_waits() and not self._is_discarded
        )
        self._parts: list[Future[UploadedPart]] = []
        self._in_flight: set[Future[UploadedPart]] = set()

    def write(self, data: bytes | memoryview) -> None:
        """Copy the next bytes into a buffer. The caller writes no more than size_bytes."""
        rest = memoryview(data)
        while rest:
            if self._buffer is None:
                self._buffer = self._uploader.buffers.acquire(self._part_size_bytes)
            copied = min(len(rest), self._part_size_bytes - self._filled)
            self._buffer[self._filled : self._filled + copied] = rest[:copied]
            self._filled += copied
            BYTES_COPIED.labels("part_buffer").inc(copied)
            rest = rest[copied:]
            more_to_come = self._sent + self._filled < self._size_bytes
            if self._filled == self._part_size_bytes and more_to_come:
                self._send_part(self._buffer)

    def finish(self) -> None:
        """Send the remaining bytes and complete the object."""
        if self._upload is None:
            whole = b"" if self._buffer is None else self._buffer[: self._filled]
            self._backend.put(self._key, whole, self._crc())
            self._free_buffer()
            return
        if self._buffer is not None:
            self._send_part(self._buffer)
        self._backend.complete_upload(self._upload, [part.result() for part in self._parts])

    def discard(self) -> None:
        """Abort the upload.

        Never raises a store's error, which would hide the reason to discard.
        """
        self._is_discarded = True
        for part in self._parts:
            part.cancel()
        # A part that is written after the abort would stay forever.
        wait(self._parts)
        self._free_buffer()
        try:
            with cleaning_up(self._uploader.waiter):
                for upload in self._unfinished():
                    self._backend.abort_upload(upload)
        except RemoteStorageError as e:
            _log.warning(
                "the upload of %s cannot be aborted and stays in the store: %s", self._key, e
            )

    def _unfinished(self) -> list[Upload]:
        if self._upload is not None:
            return [self._upload]
        # If the response to the begin was lost, only the key identifies the upload.
        return list(self._backend.list_uploads(self._key)) if self._begun else []

    def _wait_for_a_thread(self) -> None:
        """Wait until fewer parts are in flight than there are threads.

        More parts would only wait, in memory that other copies need. Raises the error of a failed
        part.
        """
        may_send = len(self._in_flight) < self._uploader.thread_count
        done, self._in_flight = wait(self._in_flight, 0 if may_send else None, FIRST_COMPLETED)
        for part in done:
            part.result()

    def _send_part(self, buffer: memoryview) -> None:
        if self._upload is None:
            self._begun = True
            self._upload = self._backend.begin_upload(self._key)
            failpoint("rsm.upload_begun")
        self._wait_for_a_thread()
        part = Part(len(self._parts) + 1, self._sent, buffer[: self._filled], self._crc())
        future = self._uploader.send(self._call, self._upload, part)
        self._parts.append(future)
        self._in_flight.add(future)
        self._sent += self._filled
        self._buffer, self._filled = None, 0
        # Also called if the part is cancelled before a thread begins it.
        future.add_done_callback(lambda _: self._uploader.buffers.release(buffer))

    def _crc(self) -> int | None:
        """Return the crc32c that the bytes in the buffer must have; None if unknown."""
        return self._digest.crc32c_of(self._sent, self._filled) if self._digest else None

    def _free_buffer(self) -> None:
        if self._buffer is not None:
            self._uploader.buffers.release(self._buffer)
            self._buffer = None
