"""Generate any partition that retention may meet: histories, accidents and overlaps."""

from hypothesis import strategies as st

from services.api.lineage import Lineage
from services.api.partitions import PartitionState
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.api.topic_config import UNLIMITED, TopicConfig
from tests.unit.api.retention_partition import DELETING, FINISHED, STARTED, partition, segment

MAX_OFFSET = 60

Partition = tuple[list[RemoteLogSegmentMetadata], PartitionState]

configs = st.builds(
    TopicConfig,
    retention_ms=st.integers(UNLIMITED, 30),
    retention_bytes=st.integers(UNLIMITED, 300),
)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    epochs = sorted(draw(st.sets(st.integers(0, 8), min_size=1, max_size=5)))
    some = st.integers(0, MAX_OFFSET)
    starts = sorted(draw(st.lists(some, min_size=len(epochs), max_size=len(epochs))))
    return Lineage(segment_leader_epochs(list(zip(epochs, starts, strict=True))))


@st.composite
def any_segments(draw: st.DrawFn, history: Lineage) -> RemoteLogSegmentMetadata:
    """Draw segments of the partition's history, or of another one."""
    start = draw(st.integers(0, MAX_OFFSET))
    end = start + draw(st.integers(0, 20))
    of = draw(st.one_of(st.just(history), lineages()))
    epochs = [(e.leader_epoch, e.start_offset) for e in of.between(start, end + 1)]
    return segment(
        start,
        end,
        epochs,
        attempt=draw(st.integers(1, 3)),
        state=draw(st.sampled_from([STARTED, FINISHED, FINISHED, DELETING])),
        size=draw(st.integers(-1, 100)),
        age_ms=draw(st.integers(0, 40)),
    )


@st.composite
def any_partitions(draw: st.DrawFn) -> Partition:
    history = draw(lineages())
    log_start = draw(st.integers(0, MAX_OFFSET))
    state = partition(
        history.from_offset(log_start),
        draw(st.integers(log_start, 90)),
        log_start_offset=log_start,
        only_local_bytes=draw(st.integers(0, 100)),
        copied_through_offset=draw(st.sampled_from([30, 90, 90])),
    )
    by_id = {s.remote_log_segment_id: s for s in draw(st.lists(any_segments(history), max_size=12))}
    return list(by_id.values()), state
