"""Check one copy of a segment against the digests in its manifest."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from crc32c import crc32c

from services.api.errors import CorruptSegmentError, RemoteStorageError
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogDigest,
    RemoteStorageManager,
)
from services.api.segment_objects import SegmentObjectKind
from services.api.segments import RemoteLogSegmentMetadata
from services.common.batches import batches

READ_BYTES = 8 * 1024 * 1024
"""The approximate number of bytes of a log that one fetch reads: one request to the store."""

_MOST_NAMED = 4
"""The most damaged parts of a file that are named one by one."""


class UnverifiedError(Exception):
    """The copy could not be verified although nothing failed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged object of a copy, with a text that describes the damaged part."""

    kind: SegmentObjectKind
    detail: str


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a file with its own digest; `start` is the position of its first byte."""

    name: str
    start: int
    digest: FileDigest

    @property
    def size_bytes(self) -> int:
        return self.digest.size_bytes


@dataclass(frozen=True, slots=True)
class _Problem:
    """Damage in a part; `is_judged_elsewhere` if RSM detected it, so that its bytes are unknown."""

    text: str
    is_judged_elsewhere: bool = False

    def __str__(self) -> str:
        return self.text


Fetch = Callable[[Sequence[_Part]], Iterator[bytes | memoryview]]


@dataclass(eq=False)
class CopyScrub:
    """Read a copy once, and damaged parts twice, with one message in memory."""

    rsm: RemoteStorageManager
    metadata: RemoteLogSegmentMetadata
    digests: CopyDigests
    acquire: Callable[[int], None]

    def damages(self) -> Iterator[Damage]:
        """Yield the damage of each object, with earlier findings before the error of a failed read.

        Raises:
            RemoteResourceNotFoundError: an object is missing.
            UnverifiedError: two reads of the same bytes differ.
            RemoteStorageError: a read failed; the rest was not checked.
        """
        yield from self._of_log(self.digests.log)
        yield from self._of_indexes()

    def _of_log(self, digest: LogDigest) -> Iterator[Damage]:
        passing, wrong = _PassingBytes(), list[_Problem]()
        error: Exception | None = None
        try:
            for parts in batches(_chunks(digest), max(READ_BYTES // digest.chunk_bytes, 1)):
                wrong += self._wrong(parts, self._fetch_log, passing)
        except (RemoteStorageError, UnverifiedError) as e:
            error = e
        is_whole = error is None and passing.digest == digest.whole
        if wrong and is_whole:
            # A changed bit of the manifest is likelier than different bytes with the same crc32c.
            text = "the log is as it was copied, the manifest's digests of its chunks are not"
            yield Damage(SegmentObjectKind.MANIFEST, f"{text}: {_joined(wrong)}")
        elif wrong:
            chunks = max(len(digest.chunk_crc32c), 1)
            text = f"{len(wrong):,} of {chunks:,} chunks are not what was copied"
            if any(each.is_judged_elsewhere for each in wrong):
                text += " (the log, or the manifest's digests of it)"
            yield Damage(SegmentObjectKind.LOG, f"{text}: {_joined(wrong)}")
        elif error is None and not is_whole:
            text = "each chunk of the log is as it was copied, the manifest's digest of all is not"
            yield Damage(SegmentObjectKind.MANIFEST, text)
        if error is not None:
            raise error

    def _of_indexes(self) -> Iterator[Damage]:
        wrong: list[_Problem] = []
        error: Exception | None = None
        try:
            for kind, digest in self.digests.indexes.items():
                wrong += self._wrong_of_index(kind, digest)
        except (RemoteStorageError, UnverifiedError) as e:
            error = e
        if wrong:
            yield Damage(SegmentObjectKind.INDEXES, _joined(wrong))
        if error is not None:
            raise error

    def _wrong_of_index(self, kind: IndexType, digest: FileDigest) -> Iterator[_Problem]:
        part = _Part(f"the {kind.name} index", 0, digest)
        fetch = partial(self.rsm.fetch_index, self.metadata, kind, as_stored=True)
        return self._wrong([part], lambda _: fetch(), _PassingBytes())

    def _fetch_log(self, parts: Sequence[_Part]) -> Iterator[bytes | memoryview]:
        end = parts[-1].start + parts[-1].size_bytes
        # An empty log has no last byte.
        last = end - 1 if end else None
        return self.rsm.fetch_log_segment(self.metadata, parts[0].start, last)

    def _wrong(
        self, parts: Sequence[_Part], fetch: Fetch, passing: "_PassingBytes"
    ) -> Iterator[_Problem]:
        """Check adjacent parts; if one is wrong, read all of them again one by one.

        A damaged part may hide those after it, and the network may have changed a byte.
        """
        first = self._problem(parts, passing.of(fetch(parts)))
        if first is None:
            return
        is_wrong_again = False
        for part in parts:
            problem = self._problem([part], fetch([part]))
            if problem is not None:
                is_wrong_again = True
                yield _Problem(f"{part.name}: {problem}", problem.is_judged_elsewhere)
        if not is_wrong_again:
            raise UnverifiedError(f"the first read was damaged, the second correct: {first}")

    def _problem(
        self, parts: Sequence[_Part], pieces: Iterator[bytes | memoryview]
    ) -> _Problem | None:
        """Read `pieces` and return the first problem of the parts."""
        self.acquire(sum(part.size_bytes for part in parts))
        try:
            sums = sums_of(pieces, [part.size_bytes for part in parts])
        except CorruptSegmentError:
            # The anomaly already has the partition, key and location that RSM's error repeats.
            return _Problem("RSM answered DATA_LOSS", is_judged_elsewhere=True)
        for part, digest in zip(parts, sums, strict=True):
            if digest != part.digest:
                copied = part.digest.crc32c
                text = f"crc32c of {digest.size_bytes} bytes is {digest.crc32c:08x}"
                return _Problem(f"{text}, of what was copied {copied:08x}")
        return None


class _PassingBytes:
    """Compute the digest of the bytes that pass."""

    def __init__(self) -> None:
        self.digest = FileDigest(0, 0)

    def of(self, pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for piece in pieces:
            size_bytes = self.digest.size_bytes + len(piece)
            self.digest = FileDigest(size_bytes, crc32c(piece, self.digest.crc32c))
            yield piece


def sums_of(pieces: Iterator[bytes | memoryview], sizes_bytes: Sequence[int]) -> list[FileDigest]:
    """Compute the digests of adjacent parts of these sizes; extra bytes count to the last part."""
    sums, number = [FileDigest(0, 0) for _ in sizes_bytes], 0
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            so_far = sums[number]
            is_last = number == len(sums) - 1
            room = len(rest) if is_last else sizes_bytes[number] - so_far.size_bytes
            piece, rest = rest[:room], rest[room:]
            size_bytes = so_far.size_bytes + len(piece)
            sums[number] = FileDigest(size_bytes, crc32c(piece, so_far.crc32c))
            if not is_last and size_bytes == sizes_bytes[number]:
                number += 1
    return sums


def _chunks(digest: LogDigest) -> Iterator[_Part]:
    """Yield a log's chunks; at least one, because an empty log must exist too."""
    if not digest.chunk_crc32c:
        yield _Part("the log", 0, digest.whole)
    for number, crc in enumerate(digest.chunk_crc32c):
        start = number * digest.chunk_bytes
        size_bytes = min(digest.chunk_bytes, digest.size_bytes - start)
        last = start + size_bytes - 1
        name = f"chunk {number}, bytes {start} to {last}"
        yield _Part(name, start, FileDigest(size_bytes, crc))


def _joined(wrong: Sequence[_Problem]) -> str:
    text = "; ".join(map(str, wrong[:_MOST_NAMED]))
    return text if len(wrong) <= _MOST_NAMED else f"{text}; and {len(wrong) - _MOST_NAMED:,} more"
