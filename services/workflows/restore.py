"""Restore a partition's log from its segments into a broker's log directory.

Each segment is fetched as one stream, verified batch by batch (CRC, offsets, leader epochs) and
written; its indexes are built from the same batches. The transaction index and the producer
snapshot of a whole segment are the stored ones; of a part of a segment they are rebuilt, from the
producers' state at its beginning. A segment's log gets its name last: a later run takes it as it
is, if its bytes are right.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.api.errors import CorruptSegmentError, InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.remote_storage_manager import IndexType
from services.api.segments import SegmentLeaderEpoch
from services.common.failpoints import failpoint
from services.records.batches import (
    Batch,
    BatchError,
    Claims,
    FileWindow,
    StreamWindow,
    walk_batches,
)
from services.records.index_files import (
    EMPTY_PRODUCER_SNAPSHOT,
    open_transactions,
    parse_aborted_txns,
)
from services.records.producers import Producers
from services.records.segment_indexes import IndexBuilder, Transactions
from services.workflows.restore_files import RestoringFolder, write, writing
from services.workflows.restore_pieces import Piece, Source

_LOG, _SNAPSHOT = ".log", ".snapshot"
_INDEXES = (".index", ".timeindex", ".txnindex")
_EPOCH_AT, _EPOCH_END = 12, 16


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """The log to restore.

    Attributes:
        source: the partition whose log it was.
        tp: the partition that the log becomes.
        pieces: its segments, in order.
        missing: ranges of offsets that it lacks, both ends inclusive.
        lineage: of `source`.
        start_offset: the restored log's start; the first piece may begin before it.
        before_ms: the log ends before the first batch with a record of this time or later; None:
            at its end.
        sources: all that are known, for the producers' state where the log begins.
        options: names the range; a restore that did not end is continued with equal ones only.
    """

    source: TopicIdPartition
    tp: TopicIdPartition
    pieces: Sequence[Piece]
    missing: Sequence[tuple[int, int]]
    lineage: Lineage
    start_offset: int
    before_ms: int | None
    sources: Sequence[Source]
    options: str

    @property
    def is_new_topic(self) -> bool:
        """Return whether every batch gets leader epoch 0."""
        return self.tp.topic_id != self.source.topic_id


@dataclass(slots=True)
class RestoredLog:
    """The log that was restored.

    Attributes:
        end_offset: the offset that the next record gets.
        segments, size_bytes: of the restored log.
        resumed_segments: those of `segments` that an earlier run had written.
        open_transactions: by producer id, their first offsets: the log ends before their end.
    """

    start_offset: int
    end_offset: int = 0
    segments: int = 0
    size_bytes: int = 0
    resumed_segments: int = 0
    open_transactions: Mapping[int, int] = field(default_factory=dict)


class PartitionRestore:
    """Restore one partition, with a batch and one segment's indexes in memory."""

    def __init__(self, log_dir: Path, plan: RestorePlan, on_read: Callable[[int], object]) -> None:
        """Prepare a restore.

        Args:
            on_read: called with the size of each part that was fetched, or found on the disk; may
                wait, and may raise to end the run.
        """
        self._plan = plan
        self._on_read = on_read
        self._folder = RestoringFolder(log_dir, plan.tp)
        self._done = RestoredLog(plan.start_offset)
        self._snapshot: bytes | None = None
        self._files: list[Path] = []
        self._nothing = InvalidRequestError(f"{plan.options}: no record is in this range")

    def check(self) -> None:
        """Check that there is something to restore, and a place for it.

        Raises:
            InvalidRequestError: the log directory has the partition's records or another restore
                of it, or there is no record in the range.
        """
        if not self._plan.pieces:
            raise self._nothing
        self._folder.check(self._plan.options)

    def run(self) -> RestoredLog:
        """Write the partition, or the rest of it, and give it its name.

        Raises:
            InvalidRequestError: there is no record in the range.
            CorruptSegmentError: a segment is damaged.
            RemoteStorageError: a segment cannot be read.
            OSError: the disk cannot be written.
        """
        plan, done, folder = self._plan, self._done, self._folder
        folder.begin(plan.options)
        following = [piece.start_offset for piece in plan.pieces[1:]]
        for piece, next_start in zip(plan.pieces, [*following, None], strict=True):
            if self._is_written(piece, next_start):
                done.resumed_segments += 1
            elif not self._write(piece, next_start):
                break
        if not done.segments:
            folder.discard()
            raise self._nothing
        if self._snapshot is not None:
            done.open_transactions = open_transactions(self._snapshot)
        done.start_offset = min(done.start_offset, done.end_offset)
        folder.publish(self._epochs(), done.start_offset, done.end_offset, self._files)
        return done

    def _epochs(self) -> Sequence[SegmentLeaderEpoch]:
        start, end = self._done.start_offset, self._done.end_offset
        if self._plan.is_new_topic:
            return [SegmentLeaderEpoch(0, start)]
        return self._plan.lineage.from_offset(start).before(end).entries

    def _is_written(self, piece: Piece, next_start: int | None) -> bool:
        """Take the piece as an earlier run has written it, if it has, and its bytes are right."""
        segment, end_offset = piece.source.segment, piece.start_offset
        path, claims = self._folder.file(end_offset, _LOG), Claims.of(segment)
        if self._plan.is_new_topic:
            claims = Claims(segment.end_offset, [SegmentLeaderEpoch(0, 0)])
        try:
            with FileWindow(path) as window:
                size = window.size_bytes
                for batch in walk_batches(window, 0, size, end_offset, verify=True, claims=claims):
                    end_offset = batch.last_offset + 1
                    self._on_read(0)
            snapshot = self._folder.file(next_start or end_offset, _SNAPSHOT)
            stored = snapshot.read_bytes()
        except (BatchError, FileNotFoundError):
            return False
        is_to_end = end_offset == piece.end_offset + 1
        if not (size == segment.segment_size_in_bytes if piece.is_whole else is_to_end):
            return False
        self._count(piece, end_offset, size, snapshot, stored)
        self._on_read(size)
        return True

    def _write(self, piece: Piece, next_start: int | None) -> bool:
        """Write the piece; return False if the log ends within it."""
        plan = self._plan
        may_rebuild = plan.before_ms is not None or not piece.is_whole or piece.source.is_local
        state = self._producers_at(piece.start_offset) if may_rebuild else EMPTY_PRODUCER_SNAPSHOT
        producers = Producers(state)
        builder = IndexBuilder(piece.start_offset, Transactions(open_transactions(state)))
        path, at, end_offset, ended = self._folder.file(piece.start_offset, _LOG), 0, -1, False
        with writing(path) as file:
            for batch in self._batches(piece):
                ended = plan.before_ms is not None and batch.max_timestamp_ms >= plan.before_ms
                if ended:
                    break
                if plan.is_new_topic and batch.leader_epoch:
                    file.write(batch.data[:_EPOCH_AT])
                    file.write(bytes(_EPOCH_END - _EPOCH_AT))
                    file.write(batch.data[_EPOCH_END:])
                else:
                    file.write(batch.data)
                moved = batch._replace(position=at)
                builder.observe(moved)
                if may_rebuild:
                    producers.observe(moved)
                at, end_offset = at + batch.size_bytes, batch.last_offset + 1
            if not ended:
                end_offset = max(end_offset, piece.start_offset)
            elif at == 0:
                return False
            transactions = snapshot = None
            if piece.is_whole and not ended:
                transactions = piece.source.index(IndexType.TRANSACTION)
                snapshot = piece.source.index(IndexType.PRODUCER_SNAPSHOT)
                self._check_stored(piece, transactions, snapshot)
            if transactions is None:
                transactions = builder.transaction_index()
            if snapshot is None:
                snapshot = producers.snapshot()
            following = end_offset if ended or next_start is None else next_start
            write(self._folder.file(following, _SNAPSHOT), snapshot)
            for suffix, data in zip(
                _INDEXES, (builder.offset_index(), builder.time_index(), transactions), strict=True
            ):
                if data or suffix != ".txnindex":
                    write(path.with_suffix(suffix), data)
        self._count(piece, end_offset, at, self._folder.file(following, _SNAPSHOT), snapshot)
        failpoint("restore.segment")
        return not ended

    def _batches(self, piece: Piece) -> Iterator[Batch]:
        """Yield the piece's batches, verified.

        Raises:
            CorruptSegmentError: a batch is damaged, or lies across the piece's border.
        """
        segment, size = piece.source.segment, piece.source.segment.segment_size_in_bytes
        window = StreamWindow(lambda first, last: self._read(piece.source, first, last), size, size)
        claims, start = Claims.of(segment), segment.start_offset
        try:
            for batch in walk_batches(window, 0, size, start, verify=True, claims=claims):
                if batch.base_offset > piece.end_offset:
                    break
                if batch.last_offset > piece.end_offset:
                    if piece is self._plan.pieces[-1]:
                        break
                    raise self._damaged(piece, f"batch {batch.base_offset} crosses a leader epoch")
                if batch.base_offset >= piece.start_offset:
                    yield batch
                elif batch.last_offset >= piece.start_offset:
                    raise self._damaged(piece, f"batch {batch.base_offset} crosses two segments")
                if batch.last_offset == piece.end_offset:
                    break  # What follows, perhaps damaged, is not read.
        except BatchError as e:
            raise self._damaged(piece, str(e)) from e
        finally:
            window.close()

    def _read(self, source: Source, first: int, last: int) -> Iterator[bytes | memoryview]:
        for data in source.read(first, last):
            self._on_read(len(data))
            yield data

    def _producers_at(self, offset: int) -> bytes:
        """Return the producer snapshot of the log before `offset`; an empty one if none is known.

        It counts only for a part of a segment, and for a log that no snapshot precedes.
        """
        if self._snapshot is not None:
            return self._snapshot
        for source in self._plan.sources:
            if source.segment.end_offset + 1 == offset:
                return source.index(IndexType.PRODUCER_SNAPSHOT) or EMPTY_PRODUCER_SNAPSHOT
        return EMPTY_PRODUCER_SNAPSHOT

    def _check_stored(
        self, piece: Piece, transactions: bytes | None, snapshot: bytes | None
    ) -> None:
        try:
            parse_aborted_txns(transactions or b"")
            open_transactions(snapshot or EMPTY_PRODUCER_SNAPSHOT)
        except ValueError as e:
            raise self._damaged(piece, str(e)) from e

    def _damaged(self, piece: Piece, why: str) -> CorruptSegmentError:
        segment = piece.source.segment
        return CorruptSegmentError(
            f"segment {segment.remote_log_segment_id} ({segment.start_offset} to "
            f"{segment.end_offset}): {why}; restore the ranges before and after it with --to and "
            "--from, or repair it first"
        )

    def _count(
        self, piece: Piece, end_offset: int, size_bytes: int, snapshot: Path, state: bytes
    ) -> None:
        done, folder = self._done, self._folder
        done.end_offset = end_offset
        done.segments += 1
        done.size_bytes += size_bytes
        self._snapshot = state
        self._files += [snapshot, *(folder.file(piece.start_offset, s) for s in (_LOG, *_INDEXES))]
