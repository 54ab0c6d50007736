"""Read and decode the records of a partition, each batch within a limit of memory."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import Fetches
from services.api.remote_log_manager import (
    AbortedTransaction,
    FetchError,
    FetchPartition,
    FetchRequest,
    IsolationLevel,
    RecordSource,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.records.batches import (
    Batch,
    BatchError,
    Claims,
    MemoryWindow,
    RangeReader,
    StreamWindow,
    walk_batches,
)
from services.records.committed import CommittedReader
from services.records.decode import (
    DecodedRecord,
    Marker,
    UnreadableRecordsError,
    control_marker,
    records_of,
)

FETCH_BYTES = 1024 * 1024
FOLLOW_WAIT_MS = 1_000
RETRY_PAUSE_S = 1.0

_MAY_PASS = (
    FetchError.TIERED_STORAGE_NOT_AVAILABLE,
    FetchError.NOT_LEADER_OR_FOLLOWER,
    FetchError.REQUEST_TIMED_OUT,
)


class UnreadableBatchError(Exception):
    """The error if a batch cannot be decoded; the batches after it can."""


class ReadFailedError(Exception):
    """The error of a fetch that failed, or of bytes that are no batches.

    Attributes:
        error: Kafka's name of it; None if the bytes are damaged.
    """

    def __init__(self, message: str, error: FetchError | None = None) -> None:
        super().__init__(message)
        self.error = error


class RecordKind(Enum):
    """What a record is to a consumer of transactions.

    DATA: a record that consumers get. ABORTED: a record of an aborted transaction. COMMIT, ABORT:
    the control record that ends a transaction. CONTROL: any other control record.
    """

    DATA = "DATA"
    ABORTED = "ABORTED"
    COMMIT = "COMMIT"
    ABORT = "ABORT"
    CONTROL = "CONTROL"


@dataclass(frozen=True, slots=True)
class Record:
    """A record.

    Attributes:
        timestamp_ms: -1 if it has none.
        key, value: None is null, which differs from empty.
        headers: in their order; a name may be there twice.
        leader_epoch: of the leader that wrote it.
        source: the broker's disk or the tier.
        metadata_age_ms: how old RLM's knowledge of the tier was, if RLMM was away; else None.
        missing: the offsets right before it, both ends inclusive, that no batch has; None if there
            are none. They were compacted, or are a gap.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    source: RecordSource | None
    kind: RecordKind = RecordKind.DATA
    metadata_age_ms: int | None = None
    missing: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How to read, as the arguments of TierConsumer.records."""

    batch_limit_bytes: int = DEFAULT_LIMIT_BYTES
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    with_transactions: bool = False
    follow: bool = False

    @property
    def fetched_isolation(self) -> IsolationLevel:
        return IsolationLevel.READ_COMMITTED if self.with_transactions else self.isolation


def raise_unreadable(error: UnreadableBatchError) -> None:
    """End the read at a batch that cannot be decoded."""
    raise error


def decoded(
    manager: Fetches,
    tp: TopicIdPartition,
    offset: int,
    options: ReadOptions | None = None,
    unreadable: Callable[[UnreadableBatchError], None] = raise_unreadable,
) -> Iterator[Record]:
    """Read the records from `offset` to the end of the log.

    Args:
        unreadable: called with each batch that cannot be decoded; the read continues after it.

    Raises:
        ReadFailedError: a fetch failed; names the offset.
        RemoteStorageError: RLM could not be called.
    """
    options = options or ReadOptions()
    missing: tuple[int, int] | None = None
    epoch = -1  # Of the last batch.
    while True:
        wanted = FetchPartition(tp, offset, FETCH_BYTES, None, epoch if epoch >= 0 else None)
        answer = _fetch(manager, wanted, options)
        if not answer.runs and not options.follow:
            return
        reader = CommittedReader()
        reader.add(answer.aborted)
        age_ms = answer.metadata_age_ms
        for source, data in answer.runs:
            for batch in _batches(tp, data):
                is_skipped = reader.skips(batch)
                if batch.base_offset > offset:
                    missing = (missing or (offset,))[0], batch.base_offset - 1
                kind = _kind_of(batch, is_skipped)
                is_left_out = is_skipped and not options.with_transactions
                epoch = batch.leader_epoch
                try:
                    for record in () if is_left_out else _records_of(batch, options):
                        if record.offset >= offset:
                            yield Record(*record, epoch, source, kind, age_ms, missing)
                            missing = None
                except UnreadableRecordsError as e:
                    unreadable(_unreadable(tp, e))
                offset = max(offset, batch.last_offset + 1)
        if offset >= answer.end_offset and not options.follow:
            return


def decoded_segment(
    segment: RemoteLogSegmentMetadata,
    open_range: RangeReader,
    offset: int,
    options: ReadOptions | None = None,
    unreadable: Callable[[UnreadableBatchError], None] = raise_unreadable,
) -> Iterator[Record]:
    """Read the records of one segment from `offset` on, of aborted transactions too.

    Args:
        open_range: reads the segment from the store.
        unreadable: as in `decoded`.

    Raises:
        ReadFailedError: a batch is damaged.
    """
    options, tp = options or ReadOptions(), segment.remote_log_segment_id.topic_id_partition
    size_bytes = segment.segment_size_in_bytes
    window = StreamWindow(open_range, size_bytes, FETCH_BYTES)
    first, claims = segment.start_offset, Claims.of(segment)
    with closing(window), _naming_damage(tp, "the store has"):
        for batch in walk_batches(window, 0, size_bytes, first, verify=True, claims=claims):
            if batch.is_control and not options.with_transactions:
                continue
            try:
                for record in _records_of(batch, options):
                    if record.offset >= offset:
                        kind, source = _kind_of(batch, is_skipped=False), RecordSource.REMOTE
                        yield Record(*record, batch.leader_epoch, source, kind)
            except UnreadableRecordsError as e:
                unreadable(_unreadable(tp, e))


def _records_of(batch: Batch, options: ReadOptions) -> Iterable[DecodedRecord]:
    """Return the records of a batch; of a control batch its offset and time."""
    if batch.is_control:
        return (DecodedRecord(batch.base_offset, batch.max_timestamp_ms, None, None, ()),)
    return records_of(batch, options.batch_limit_bytes)


def _kind_of(batch: Batch, is_skipped: bool) -> RecordKind:
    if batch.is_control:
        return {
            Marker.COMMIT: RecordKind.COMMIT,
            Marker.ABORT: RecordKind.ABORT,
            None: RecordKind.CONTROL,
        }[control_marker(batch)]
    return RecordKind.ABORTED if is_skipped else RecordKind.DATA


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer to one fetch.

    Attributes:
        runs: whole batches, by their source.
        end_offset: the offset after the last one that the reader may get.
        throttle_time_ms: how long to wait before the next fetch.
        metadata_age_ms: as of a record.
    """

    runs: list[tuple[RecordSource | None, bytes]]
    aborted: list[AbortedTransaction]
    end_offset: int
    throttle_time_ms: int
    metadata_age_ms: int | None


def _fetch(manager: Fetches, wanted: FetchPartition, options: ReadOptions) -> _Answer:
    """Fetch once, and again while RLM throttles the reader.

    A reader that follows waits for records, and retries what may pass.
    """
    while True:
        pause_s = RETRY_PAUSE_S
        try:
            answer = _fetch_once(manager, wanted, options)
            if answer.runs or not answer.throttle_time_ms:
                return answer
            pause_s = answer.throttle_time_ms / 1000
        except ReadFailedError as e:
            if not options.follow or e.error not in _MAY_PASS:
                raise
        except (RetriableRemoteStorageError, ThrottledError):
            if not options.follow:
                raise
        time.sleep(pause_s)


def _fetch_once(manager: Fetches, wanted: FetchPartition, options: ReadOptions) -> _Answer:
    isolation = options.fetched_isolation
    request = FetchRequest(
        (wanted,),
        FETCH_BYTES,
        isolation,
        max_wait_ms=FOLLOW_WAIT_MS if options.follow else 0,
        min_bytes=1 if options.follow else 0,
    )
    parts, tp = list(manager.fetch(request)), wanted.topic_id_partition
    for part in parts:
        reason = f"{tp.topic}-{tp.partition} at offset {wanted.fetch_offset}: "
        if part.error is not FetchError.NONE:
            raise ReadFailedError(f"{reason}{part.error.value}: {part.error_message}", part.error)
        if part.diverging_epoch is not None:
            raise ReadFailedError(
                f"{reason}an unclean election has overruled the records from offset "
                f"{part.diverging_epoch.end_offset} on that were read; read again from there"
            )
    filled = [part for part in parts if any(part.pieces)]
    runs = [
        (source, b"".join(piece for part in run for piece in part.pieces))
        for source, run in groupby(filled, key=attrgetter("source"))
    ]
    aborted = [transaction for part in parts for transaction in part.aborted_transactions]
    committed = isolation is IsolationLevel.READ_COMMITTED
    ends = (part.last_stable_offset if committed else part.high_watermark for part in parts)
    throttle_time_ms = max((part.throttle_time_ms for part in parts), default=0)
    ages_ms = (part.metadata_age_ms for part in parts)
    age_ms = max((age_ms for age_ms in ages_ms if age_ms is not None), default=None)
    return _Answer(runs, aborted, max(ends, default=-1), throttle_time_ms, age_ms)


def _batches(tp: TopicIdPartition, data: bytes) -> Iterator[Batch]:
    """Read batches and check their CRCs.

    Raises:
        ReadFailedError: if a batch is damaged; the batches behind it cannot be found.
    """
    with _naming_damage(tp, "RLM sent"):
        yield from walk_batches(MemoryWindow(data), 0, len(data), 0, verify=True)


@contextmanager
def _naming_damage(tp: TopicIdPartition, who: str) -> Iterator[None]:
    try:
        yield
    except BatchError as e:
        reason = f"{tp.topic}-{tp.partition}: {who} a damaged batch: {e}"
        raise ReadFailedError(f"{reason}; `sediment scrub` checks the stored copies") from e


def _unreadable(tp: TopicIdPartition, error: UnreadableRecordsError) -> UnreadableBatchError:
    advice = "the CRC is valid, so the producer sent it like this"
    if error.is_too_large:
        advice = (
            "if you trust its producer, raise --max-batch-size, or batch_limit_bytes of "
            "TierConsumer"
        )
    return UnreadableBatchError(f"{tp.topic}-{tp.partition}: {error}; {advice}")
