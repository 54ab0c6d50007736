"""Cache indexes of remote segments: in memory, and in files that outlive the process."""

import errno
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from cachetools import LRUCache
from crc32c import crc32c

from services.api.errors import (
    CorruptSegmentError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.lineage import parse_checkpoint
from services.api.remote_log_manager import ProblemKind
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.failpoints import failpoint
from services.common.single_flight import SingleFlight
from services.records.batches import BatchError
from services.records.index_files import (
    TIME_ENTRY,
    OffsetIndex,
    open_transactions,
    parse_aborted_txns,
)
from services.rlm.kafka_log.partition_dir import MAX_SIDE_FILE_BYTES
from services.rlm.metrics import (
    DAMAGED,
    EVICTIONS,
    FAILURES,
    FILE_BYTES,
    FILES,
    HITS,
    MISSES,
)

_log = logging.getLogger(__name__)

BLOCK_BYTES = 4096
MAX_FILES = 65_536
RETRY_AFTER_S = 10.0
"""The pause of disk accesses after a failure, seconds."""

_HEADER = Struct(">4sQI")
_MAGIC = b"SDX2"
"""Change it when check_index becomes stricter: the content of files is not checked again."""

_NAME = re.compile(
    rf"[0-9a-f]{{32}}\.(?:{'|'.join(kind.value.lower() for kind in IndexType)})"
    r"(?P<unfinished>\.[0-9a-f]{8}\.tmp)?"
)
_UNFINISHED_AFTER_S = 60.0
_SPARE_SHARE = 16
_LOCK_WAIT_S = 1.0
_MAX_REMOVAL_FAILURES = 8
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DiskBreaker:
    """Pause accesses to the disk for a while after a failure. Thread-safe.

    Args:
        name: names the disk's use in log lines.
    """

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._failed_s: float | None = None

    @property
    def is_open(self) -> bool:
        failed_s = self._failed_s
        return failed_s is not None and self._clock() - failed_s < RETRY_AFTER_S

    def failed(self, operation: str, error: OSError) -> None:
        FAILURES.labels(operation).inc()
        with self._lock:
            is_news = self._failed_s is None
            self._failed_s = self._clock()
        if is_news:
            _log.warning(
                "index cache %s: %s failed: %s; reads continue without these files, retrying "
                "every %d s",
                self._name,
                operation,
                error,
                RETRY_AFTER_S,
            )

    def worked(self) -> None:
        with self._lock:
            was_failing, self._failed_s = self._failed_s is not None, None
        if was_failing:
            _log.info("index cache %s: the disk works again", self._name)


@dataclass(frozen=True, slots=True)
class IndexFileLimits:
    """The limits of the files.

    Attributes:
        total_bytes: of all files, each counted in whole blocks of 4 KiB.
        ttl_s: how long an unused file stays; None if it stays until others need its room.
    """

    directory: Path
    total_bytes: int = 1024 * 1024 * 1024
    ttl_s: float | None = 900.0


class IndexFiles:
    """Keep indexes as files of one directory. Thread-safe; disk failures raise no error.

    A file's name is its key and its mtime is its last use, so that the directory is the only state
    and processes may share it. A file gets its name when it is complete; its checksum covers the
    name, too. Files are written one at a time, which keeps the count of bytes exact.
    """

    def __init__(
        self, limits: IndexFileLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._reads = DiskBreaker(f"{limits.directory} (reads)", clock)
        self._writes = DiskBreaker(f"{limits.directory} (writes)", clock)
        self._disk = threading.Lock()
        self._is_scanned = False
        self._files = 0
        self._bytes = 0
        self._used_lock = threading.Lock()
        self._used: dict[str, None] = {}

    def read(self, name: str) -> bytes | None:
        """Read an index; None if its file is missing or damaged."""
        if self._reads.is_open:
            return None
        try:
            index = self._read_file(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as e:
            DAMAGED.inc()
            _log.warning("index cache: removing damaged file %s: %s", name, e)
            self.remove([name], "damaged")
            return None
        except OSError as e:
            self._reads.failed("read", e)
            return None
        self._reads.worked()
        self.mark_used(name)
        return index

    def mark_used(self, name: str) -> None:
        """Mark an index as used; its file gets the new mtime with the next pass."""
        with self._used_lock:
            self._used.pop(name, None)
            self._used[name] = None

    def write(self, name: str, index: bytes) -> None:
        """Write an index if there is room and the disk works."""
        size_bytes = _charged_bytes(_HEADER.size + len(index))
        if self._writes.is_open or size_bytes > self._limits.total_bytes:
            return
        # A reader does not wait for a hanging disk: the index is then not stored.
        if not self._disk.acquire(timeout=_LOCK_WAIT_S):
            return
        try:
            if self._is_scanned:
                self._write(name, index, size_bytes)
                self._writes.worked()
        except OSError as e:
            self._writes.failed("write", e)
        finally:
            self._disk.release()

    def remove(self, names: Iterable[str], reason: str = "deleted") -> None:
        """Remove files; the next pass corrects the counts."""
        for name in names:
            try:
                os.unlink(self._limits.directory / name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                self._writes.failed("remove", e)
            else:
                EVICTIONS.labels(reason).inc()

    def maintain(self) -> None:
        """Make the directory if it is missing, and remove files that are old or too many."""
        if self._writes.is_open:
            return
        with self._disk:
            try:
                self._make_directory()
                self._trim(self._limits.total_bytes, MAX_FILES)
            except OSError as e:
                self._writes.failed("scan", e)

    def _make_directory(self) -> None:
        self._limits.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _read_file(self, name: str) -> bytes:
        with open(self._limits.directory / name, "rb", opener=_open_to_read) as file:
            status = os.fstat(file.fileno())
            header = file.read(_HEADER.size) if stat.S_ISREG(status.st_mode) else b""
            if len(header) != _HEADER.size:
                raise ValueError("incomplete header")
            magic, size_bytes, checksum = _HEADER.unpack(header)
            # Checked before the rest is read: a damaged file may have any length.
            if magic != _MAGIC or status.st_size != _HEADER.size + size_bytes:
                raise ValueError("another format or length")
            index = file.read(size_bytes)
        if checksum != _checksum(name, index):
            raise ValueError("wrong CRC-32C")
        return index

    def _write(self, name: str, index: bytes, size_bytes: int) -> None:
        total_bytes = self._limits.total_bytes
        if self._bytes + size_bytes > total_bytes or self._files >= MAX_FILES:
            # A little more than needed, so that not every write has to scan the directory.
            spare_bytes = total_bytes // _SPARE_SHARE // BLOCK_BYTES * BLOCK_BYTES
            max_files = MAX_FILES - MAX_FILES // _SPARE_SHARE - 1
            self._trim(max(total_bytes - size_bytes - spare_bytes, 0), max_files)
            if self._bytes + size_bytes > total_bytes:
                return
        try:
            self._write_file(name, index)
        except OSError as e:
            if e.errno not in _NO_ROOM or self._bytes < size_bytes:
                raise
            # The disk is smaller than the limit: keep the most recently used files.
            self._trim(self._bytes - size_bytes, MAX_FILES)
            self._write_file(name, index)
        failpoint("index_cache.file_renamed")
        self._count(self._files + 1, self._bytes + size_bytes)

    def _write_file(self, name: str, index: bytes) -> None:
        self._make_directory()
        path = self._limits.directory / name
        unfinished = path.with_name(f"{name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(unfinished, "xb", buffering=0, opener=_open_privately) as file:
                failpoint("index_cache.file_created")
                left = memoryview(_HEADER.pack(_MAGIC, len(index), _checksum(name, index)) + index)
                while left:
                    left = left[file.write(left) :]
            failpoint("index_cache.index_written")
            os.replace(unfinished, path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise

    def _trim(self, max_bytes: int, max_files: int) -> None:
        """Remove files that were not used for the TTL, then the least recently used ones."""
        self._touch_used()
        kept = sorted(self._scan())
        files, total_bytes = len(kept), sum(size for _, _, size in kept)
        oldest_s = 0.0 if self._limits.ttl_s is None else time.time() - self._limits.ttl_s
        failures = 0
        for used_s, name, size in kept:
            is_too_much = total_bytes > max_bytes or files > max_files
            if failures == _MAX_REMOVAL_FAILURES or not (is_too_much or used_s <= oldest_s):
                break
            try:
                os.unlink(self._limits.directory / name)
            except FileNotFoundError:
                pass
            except OSError as e:
                failures += 1
                self._writes.failed("remove", e)
                continue
            EVICTIONS.labels("size" if is_too_much else "age").inc()
            files, total_bytes = files - 1, total_bytes - size
        self._is_scanned = True
        self._count(files, total_bytes)

    def _touch_used(self) -> None:
        with self._used_lock:
            used, self._used = self._used, {}
        now_ns = time.time_ns()
        for order, name in enumerate(used):
            with suppress(OSError):
                os.utime(self._limits.directory / name, ns=(now_ns + order, now_ns + order))

    def _scan(self) -> Iterator[tuple[float, str, int]]:
        """Yield last use, name and charged bytes of each file; remove files of killed writers."""
        with os.scandir(self._limits.directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None:
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if match["unfinished"]:
                        if time.time() - status.st_mtime > _UNFINISHED_AFTER_S:
                            os.unlink(entry.path)
                    elif stat.S_ISREG(status.st_mode):
                        yield status.st_mtime, entry.name, _charged_bytes(status.st_size)

    def _count(self, files: int, total_bytes: int) -> None:
        self._files, self._bytes = files, total_bytes
        FILES.set(files)
        FILE_BYTES.set(total_bytes)


def _charged_bytes(size_bytes: int) -> int:
    return max(-(-size_bytes // BLOCK_BYTES), 1) * BLOCK_BYTES


def _checksum(name: str, index: bytes) -> int:
    checksum: int = crc32c(index, crc32c(name.encode()))
    return checksum


def _open_to_read(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _open_privately(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


_ENTRY_OVERHEAD_BYTES = 512
_IN_MEMORY, _IN_FILE = HITS.labels("memory"), HITS.labels("file")


@dataclass(frozen=True, slots=True)
class _Loaded:
    index: bytes
    is_fetched: bool


class RemoteIndexCache:
    """Keep the most recently used indexes in memory, and more of them in files.

    Thread-safe; readers that miss the same index at the same time cause one fetch.

    Args:
        files: None for memory only.
        wait_s: how long a reader waits for the fetch of another.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        memory_bytes: int,
        files: IndexFiles | None = None,
        wait_s: float = 0.5,
    ) -> None:
        self._rsm = rsm
        self._files = files
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._memory: LRUCache[str, bytes] = LRUCache(
            memory_bytes, getsizeof=lambda index: len(index) + _ENTRY_OVERHEAD_BYTES
        )
        self._flights: SingleFlight[str, _Loaded] = SingleFlight()

    def offset_index(self, segment: RemoteLogSegmentMetadata) -> OffsetIndex:
        """Get the segment's offset index; raises as `index` does."""
        return OffsetIndex(self.index(segment, IndexType.OFFSET), segment.start_offset)

    def index(self, segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        """Get a checked index of the segment; empty if it has no transaction index.

        Raises:
            RemoteResourceNotFoundError: if the index is not in the store.
            CorruptSegmentError: if the object is not an index of this segment.
            RetriableRemoteStorageError: if the store is unreachable, or the fetch of another reader
                takes too long.
        """
        if kind is IndexType.TRANSACTION and segment.txn_idx_empty:
            return b""
        name = name_of(segment.remote_log_segment_id, kind)
        index = self._in_memory(name)
        if index is not None:
            return index
        try:
            loaded, is_mine = self._flights.run(
                name, lambda: self._load(name, segment, kind), self._wait_s
            )
        except RemoteResourceNotFoundError:
            if kind is not IndexType.TRANSACTION:
                raise
            # As in Kafka. Not cached, because only the metadata proves that there is none.
            return b""
        # After the waiting readers have the index, because the disk may be slow.
        if loaded.is_fetched and is_mine and self._files is not None:
            self._files.write(name, loaded.index)
        return loaded.index

    def remove(self, segments: Iterable[RemoteLogSegmentId]) -> None:
        """Remove the indexes of deleted segments."""
        names = [name_of(segment, kind) for segment in segments for kind in IndexType]
        with self._lock:
            for name in names:
                self._memory.pop(name, None)
        if self._files is not None:
            self._files.remove(names)

    def maintain(self) -> None:
        """Run one pass of IndexFiles.maintain."""
        if self._files is not None:
            self._files.maintain()

    def _in_memory(self, name: str) -> bytes | None:
        with self._lock:
            index: bytes | None = self._memory.get(name)
        if index is None:
            return None
        _IN_MEMORY.inc()
        if self._files is not None:
            # Otherwise the file of the most read index would be removed first.
            self._files.mark_used(name)
        return index

    def _load(self, name: str, segment: RemoteLogSegmentMetadata, kind: IndexType) -> _Loaded:
        # Another reader may have finished its fetch since the first check.
        index = self._in_memory(name)
        if index is not None:
            return _Loaded(index, is_fetched=False)
        if self._files is not None:
            index = self._files.read(name)
        is_fetched = index is None
        if index is None:
            MISSES.inc()
            index = _joined(self._rsm.fetch_index(segment, kind), segment, kind)
            check_index(segment, kind, index)
        else:
            _IN_FILE.inc()
        with self._lock:
            if len(index) + _ENTRY_OVERHEAD_BYTES <= self._memory.maxsize:
                self._memory[name] = index
        return _Loaded(index, is_fetched)


def _joined(chunks: Iterator[bytes], segment: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
    """Join an index that is streamed, up to a limit.

    Raises:
        CorruptSegmentError: it is larger than any index.
    """
    pieces: list[bytes] = []
    size_bytes = 0
    for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > MAX_SIDE_FILE_BYTES:
            name = segment.remote_log_segment_id
            raise CorruptSegmentError(
                f"segment {name}: its {kind.value} index is larger than {MAX_SIDE_FILE_BYTES} "
                f"bytes, so it is damaged; run `sediment scrub --topic "
                f"{name.topic_id_partition.topic}`"
            )
        pieces.append(chunk)
    return b"".join(pieces)


def name_of(segment: RemoteLogSegmentId, kind: IndexType) -> str:
    """Name the file of an index."""
    return f"{segment.id.hex}.{kind.value.lower()}"


def check_index(segment: RemoteLogSegmentMetadata, kind: IndexType, data: bytes) -> None:
    """Check that the bytes are an index of this kind and segment.

    Raises:
        CorruptSegmentError: if they are not.
    """
    try:
        match kind:
            case IndexType.OFFSET:
                OffsetIndex(data, segment.start_offset, segment.segment_size_in_bytes)
            case IndexType.TIMESTAMP:
                _check_times(data, segment.end_offset - segment.start_offset)
            case IndexType.TRANSACTION:
                parse_aborted_txns(data)
            case IndexType.PRODUCER_SNAPSHOT:
                open_transactions(data)
            case IndexType.LEADER_EPOCH:
                parse_checkpoint(data.decode("ascii"))
    except (ValueError, InvalidRequestError) as e:
        raise damaged(segment, f"{kind.value} index: {e}") from e


def damaged(segment: RemoteLogSegmentMetadata, problem: str) -> CorruptSegmentError:
    """Make the error of a segment's damaged bytes: what, in which segment, and what to do next."""
    name = segment.remote_log_segment_id
    topic = name.topic_id_partition.topic
    return CorruptSegmentError(
        f"{name}, offsets {segment.start_offset} to {segment.end_offset}: {problem}; `sediment "
        f"scrub --topic {topic}` verifies the topic's segments and names damaged objects"
    )


def unread(segment: RemoteLogSegmentMetadata, error: BatchError) -> RemoteStorageError:
    """Make the error of a batch of a segment: damaged, or over a limit."""
    if error.kind is not ProblemKind.LIMIT_EXCEEDED:
        return damaged(segment, f"{error} of the copied log")
    return RemoteStorageError(f"{segment.remote_log_segment_id}: {error}")


def _check_times(data: bytes, last_relative_offset: int) -> None:
    """Check a time index less strictly than a copy, because a broker may have copied it."""
    if len(data) % TIME_ENTRY.size:
        raise ValueError(f"{len(data)} bytes are not whole entries of {TIME_ENTRY.size}")
    before = (-1, -1)
    for entry in TIME_ENTRY.iter_unpack(data):
        if entry[0] < before[0] or entry[1] < before[1]:
            raise ValueError(f"entry {entry} follows {before}; entries must ascend")
        before = entry[0], entry[1]
    if before[1] > last_relative_offset:
        raise ValueError(f"relative offset {before[1]} is beyond the segment")
