"""Plan what `sediment restore` writes: from the tier, kept segments and a local log directory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid, uuid_to_text
from services.api.lineage import Lineage, parse_checkpoint
from services.api.partitions import PartitionState
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.cli.names import UnknownPartitionError, find_partition
from services.cli.output import CommandError
from services.cli.segments import kept_segments
from services.records.batches import BatchError, FileWindow, walk_batches
from services.records.segment_indexes import IndexBuilder
from services.rlm.kafka_log.checkpoints import read_partition_metadata
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.kafka_log.partition_dir import (
    LocalSegment,
    LogFileError,
    list_segments,
    read_lineage,
    read_side_file,
)
from services.rpc.client.direct import DirectReader
from services.views.texts import partition_text
from services.workflows.restore import RestorePlan
from services.workflows.restore_files import SUFFIX
from services.workflows.restore_pieces import Source, choose_pieces, lineage_of

_CHUNK_BYTES = 1024 * 1024
_SHOWN = 5
Tier = tuple[RemoteStorageManager, DirectReader, RemoteLogMetadataManager]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """What `sediment restore` was asked for.

    Attributes:
        log_dir: of a broker.
        as_topic: "": the same topic.
        local: a log directory with what is not in the tier.
        first_offset: None: the log start; with `is_kept` the first kept offset.
        end_offset, before_ms: the end, exclusive; None: the end of the log.
        is_kept: also segments that a broker deleted and the store still keeps.
        allow_holes: also if offsets are missing.
    """

    log_dir: Path
    as_topic: str
    local: Path | None
    first_offset: int | None
    end_offset: int | None
    before_ms: int | None
    is_kept: bool
    allow_holes: bool


def plan_restores(
    tier: Tier,
    request: RestoreRequest,
    names: Sequence[str],
    show: Callable[[str], None] = lambda _: None,
) -> list[RestorePlan]:
    """Plan the restore of each named partition; `show` is told how far that is.

    Raises:
        CommandError: a partition is unknown, twice, of another cluster, or lacks offsets; the
            topic `as_topic` is not in the directory; a file of a directory is damaged.
        LogDirError: the directory is none of Kafka's.
    """
    try:
        plans = [_plan(tier, request, each, show) for each in names]
    except LogFileError as e:
        raise CommandError(str(e)) from e
    targets = [partition_text(plan.tp) for plan in plans]
    twice = next((each for each in targets if targets.count(each) > 1), None)
    if twice is not None:
        raise CommandError(f"{twice}: two of the named partitions would become this one")
    return plans


def _plan(
    tier: Tier, request: RestoreRequest, name: str, show: Callable[[str], None]
) -> RestorePlan:
    show(f"{name}: finding its segments")
    storage, _, metadata = tier
    tp, kept = _find(metadata, name, request.is_kept)
    target = _target(metadata, tp, request)
    state, segments = PartitionState(), kept
    try:
        state = metadata.partition_state(tp).value
        finished = [RemoteLogSegmentState.COPY_SEGMENT_FINISHED]
        segments = [*all_segments(metadata, tp, states=finished), *kept]
    except RemoteResourceNotFoundError:
        if not kept:  # Of a removed partition only that is left.
            raise
    sources = [_tier_source(tier, each) for each in segments]
    known = [state.lineage, *_newest_lineage(storage, segments)]
    if request.local is not None:
        folder = request.local / partition_text(tp)
        if read_partition_metadata(folder, tp.topic, tp.partition) != tp:
            raise CommandError(f"--local: {folder} is of another topic id")
        sources += _local_sources(tp, folder, show)
        known.insert(0, read_lineage(folder))
    if not sources:
        hint = "" if request.is_kept else "; --kept adds what a broker deleted"
        raise CommandError(f"{name}: nothing of it is in the tier{hint}")
    lineage = lineage_of(known, [source.segment for source in sources])
    start = request.first_offset
    if start is None:
        start = min(source.segment.start_offset for source in sources)
        if not request.is_kept:
            of_broker = 0 if state.polled_log is None else state.polled_log.log_start_offset
            start = max(start, state.log_start_offset, of_broker)
    pieces, missing = choose_pieces(sources, lineage, start, request.end_offset)
    if missing and not request.allow_holes:
        raise CommandError(_missing_text(tp, missing))
    if pieces:
        start = max(start, pieces[0].start_offset)
    options = (
        f"{uuid_to_text(tp.topic_id)}:{partition_text(tp)} as {uuid_to_text(target.topic_id)}, "
        f"offsets {start} to {'the end' if request.end_offset is None else request.end_offset}"
    )
    if request.before_ms is not None:
        options += f", before {request.before_ms} ms"
    return RestorePlan(
        tp, target, pieces, missing, lineage, start, request.before_ms, sources, options
    )


def _find(
    metadata: RemoteLogMetadataManager, text: str, is_kept: bool
) -> tuple[TopicIdPartition, list[RemoteLogSegmentMetadata]]:
    """Find a partition, which RLMM need not know any more, and its kept segments."""
    of_name = [*kept_segments(metadata, text.rpartition(":")[2])] if is_kept else []
    try:
        tp = find_partition(metadata, text)
    except UnknownPartitionError:
        known = {each.topic_id_partition for each in of_name}
        if not known:
            raise
        if len(known) > 1:
            names = ", ".join(f"{uuid_to_text(each.topic_id)}:{text}" for each in known)
            raise CommandError(f"several topics have had the name; pass one of {names}") from None
        (tp,) = known
    return tp, [each for each in of_name if each.topic_id_partition == tp]


def _target(
    metadata: RemoteLogMetadataManager, tp: TopicIdPartition, request: RestoreRequest
) -> TopicIdPartition:
    """Return the partition that the restored log becomes."""
    found = request.log_dir / f"{request.as_topic or tp.topic}-{tp.partition}"
    if request.as_topic:
        unfinished = found.with_name(found.name + SUFFIX)
        try:
            place = found if found.exists() else unfinished
            return read_partition_metadata(place, request.as_topic, tp.partition)
        except LogFileError as e:
            hint = "create the topic with a replica on this broker before you stop it"
            raise CommandError(f"--as: {e}; {hint}") from e
    cluster_id = read_cluster_id([request.log_dir])
    of_topic = all_partitions(metadata, topic=tp.topic)
    clusters = {each.cluster_id for each in of_topic if each.topic_id_partition == tp} - {None}
    if clusters and cluster_id not in clusters:
        raise CommandError(
            f"{request.log_dir}: is of cluster {cluster_id}, and {partition_text(tp)} of "
            f"{', '.join(map(str, clusters))}; --as NEW-TOPIC restores into another cluster"
        )
    if found.exists() and read_partition_metadata(found, tp.topic, tp.partition) != tp:
        raise CommandError(f"{found}: the topic has another id; pass --as {tp.topic}")
    return tp


def _tier_source(tier: Tier, segment: RemoteLogSegmentMetadata) -> Source:
    storage, reader, _ = tier

    def index(kind: IndexType) -> bytes | None:
        try:
            return b"".join(storage.fetch_index(segment, kind))
        except RemoteResourceNotFoundError:
            if kind is not IndexType.TRANSACTION:
                raise
            return b""

    return Source(segment, partial(reader.fetch_log_segment, segment), index)


def _newest_lineage(
    storage: RemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
) -> Iterator[Lineage]:
    """Yield the leader epochs that the leader had when it copied the newest segment."""
    if segments:
        newest = max(
            segments, key=lambda s: (s.segment_leader_epochs[-1].leader_epoch, s.end_offset)
        )
        text = b"".join(storage.fetch_index(newest, IndexType.LEADER_EPOCH)).decode()
        yield parse_checkpoint(text)


def _local_sources(
    tp: TopicIdPartition, folder: Path, show: Callable[[str], None]
) -> Iterator[Source]:
    """Yield the segments of a local log; the active one ends with its last whole batch."""
    for each in list_segments(folder):
        show(f"reading {each.log_path}")
        builder, size, end = IndexBuilder(each.base_offset), 0, each.base_offset
        with FileWindow(each.log_path) as window:
            batches = walk_batches(window, 0, each.size_bytes, end, verify=not each.is_rolled)
            try:
                for batch in batches:
                    builder.observe(batch)
                    size, end = batch.next_position, batch.last_offset + 1
            except BatchError as e:
                if each.is_rolled:
                    raise CommandError(f"--local: {each.log_path}: {e}") from e
        if size:
            end = each.next_base_offset or end
            segment = RemoteLogSegmentMetadata(
                RemoteLogSegmentId(tp, random_uuid()),
                each.base_offset,
                end - 1,
                builder.max_timestamp_ms,
                -1,
                0,
                tuple(builder.leader_epochs),
                size,
            )
            snapshot = each.directory / f"{end:020}.snapshot"
            yield Source(segment, partial(_read, each), partial(_stored, snapshot), is_local=True)


def _read(segment: LocalSegment, first: int, last: int) -> Iterator[bytes | memoryview]:
    with FileWindow(segment.log_path) as window:
        for at in range(first, last + 1, _CHUNK_BYTES):
            yield window.read(at, min(_CHUNK_BYTES, last + 1 - at))


def _stored(snapshot: Path, kind: IndexType) -> bytes | None:
    return read_side_file(snapshot) if kind is IndexType.PRODUCER_SNAPSHOT else None


def _missing_text(tp: TopicIdPartition, missing: Sequence[tuple[int, int]]) -> str:
    ranges = ", ".join(f"{first} to {last}" for first, last in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return (
        f"{partition_text(tp)}: offsets {ranges}{more} are missing; add them with --local DIR or "
        "--kept, choose a range with --from and --to, or pass --allow-holes"
    )
