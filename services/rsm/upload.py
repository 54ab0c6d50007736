"""Writing an object of known size in bounded memory, whatever its size."""

import logging
import queue
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.failpoints import failpoint
from services.rsm.backends.protocol import StorageBackend, Upload, UploadedPart

_log = logging.getLogger(__name__)


class PartBuffers:
    """A fixed number of buffers of one size. To wait for a free one is the back-pressure.

    Memory is taken when a buffer is first needed. A taker must send its buffer off before it
    takes the next one, so that some buffer always comes back.
    """

    def __init__(self, count: int, size_bytes: int, wait_timeout_ms: int) -> None:
        self.size_bytes = size_bytes
        self._wait_timeout_s = wait_timeout_ms / 1000
        # Last in, first out: what has memory is used again before what has none.
        self._free: queue.LifoQueue[memoryview | None] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(None)

    def take(self) -> memoryview:
        """A buffer with old bytes in it.

        Raises:
            RetriableRemoteStorageError: none became free in time; the store is too slow.
        """
        try:
            free = self._free.get(timeout=self._wait_timeout_s)
        except queue.Empty as e:
            text = f"no part buffer became free within {self._wait_timeout_s:g} s"
            raise RetriableRemoteStorageError(text) from e
        return memoryview(bytearray(self.size_bytes)) if free is None else free

    def give_back(self, buffer: memoryview) -> None:
        self._free.put(buffer)


class Uploader:
    """Threads and buffers that all copies of a process share."""

    def __init__(self, backend: StorageBackend, buffers: PartBuffers, threads: int) -> None:
        self.backend = backend
        self.buffers = buffers
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="rsm-upload")

    @contextmanager
    def object(self, key: str, size_bytes: int) -> Iterator["ObjectUpload"]:
        """Write `size_bytes` bytes inside; the object is there when the block ends.

        If the block is left by any exception no upload is left unfinished, as far as the store can
        be reached; an object that is complete already is not deleted.
        """
        upload = ObjectUpload(self, key, size_bytes)
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.discard()
            raise

    def close(self) -> None:
        """Wait for the parts under way and stop the threads."""
        self.threads.shutdown()


class ObjectUpload:
    """One object: a single request where it fits into a part, else parts sent side by side."""

    def __init__(self, uploader: Uploader, key: str, size_bytes: int) -> None:
        self._uploader = uploader
        self._backend = uploader.backend
        self._key = key
        self._size_bytes = size_bytes
        self._buffer: memoryview | None = None
        self._filled = 0
        self._sent = 0
        self._upload: Upload | None = None
        self._parts: list[Future[UploadedPart]] = []

    def write(self, data: bytes) -> None:
        """Take the next bytes; returns when they are copied. The caller keeps to size_bytes."""
        rest = memoryview(data)
        while rest:
            if self._buffer is None:
                self._buffer = self._uploader.buffers.take()
            taken = min(len(rest), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + taken] = rest[:taken]
            self._filled += taken
            rest = rest[taken:]
            more_to_come = self._sent + self._filled < self._size_bytes
            if self._filled == len(self._buffer) and more_to_come:
                self._send_part(self._buffer)

    def finish(self) -> None:
        """Send what is left and make the object."""
        if self._upload is None:
            whole = b"" if self._buffer is None else self._buffer[: self._filled]
            self._backend.put(self._key, whole)
            self._free_buffer()
            return
        if self._buffer is not None:
            self._send_part(self._buffer)
        self._backend.complete_upload(self._upload, [part.result() for part in self._parts])

    def discard(self) -> None:
        """End the upload. Never raises a store's error: the reason to discard must be seen."""
        for part in self._parts:
            part.cancel()
        # A part that lands after the abort would stay for ever.
        wait(self._parts)
        self._free_buffer()
        if self._upload is None:
            return
        try:
            self._backend.abort_upload(self._upload)
        except RemoteStorageError as e:
            _log.warning("the upload of %s is left unfinished: %s", self._key, e)

    def _send_part(self, buffer: memoryview) -> None:
        if self._upload is None:
            self._upload = self._backend.begin_upload(self._key)
        for part in self._parts:
            if part.done():
                part.result()
        number, data = len(self._parts) + 1, buffer[: self._filled]
        future = self._uploader.threads.submit(
            self._upload_part, self._upload, number, self._sent, data
        )
        self._parts.append(future)
        self._sent += self._filled
        self._buffer, self._filled = None, 0
        # Also where the part is cancelled before a thread takes it up.
        future.add_done_callback(lambda _: self._uploader.buffers.give_back(buffer))

    def _upload_part(
        self, upload: Upload, number: int, offset: int, data: memoryview
    ) -> UploadedPart:
        part = self._backend.upload_part(upload, number, offset, data)
        failpoint("rsm.part_written")
        return part

    def _free_buffer(self) -> None:
        if self._buffer is not None:
            self._uploader.buffers.give_back(self._buffer)
            self._buffer = None
