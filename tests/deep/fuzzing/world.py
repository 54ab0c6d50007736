"""A small world to ask about: partitions and segments in every state, so that a request that is
sound reaches deep code."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from uuid import UUID

from services.api.calls import MutationContext
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    SegmentUpdate,
    all_holds,
)
from services.api.segment_batches import SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.rpc.converters.shared import metadata_to_proto, topic_id_partition_to_proto
from tests.contract.rlmm.partition_states import report_of, taken
from tests.contract.rlmm.segments import (
    BROKER,
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    put_deletion,
    segment,
    update_to,
)
from tests.harness.holds import hold
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

PLAN = "plan-1"
_SEGMENTS: Sequence[tuple[int, int, dict[int, int], Sequence[RemoteLogSegmentState]]] = (
    (0, 9, {0: 0}, [FINISHED]),
    (10, 19, {0: 10, 1: 15}, [FINISHED]),
    (5, 24, {1: 5}, [FINISHED]),
    (25, 34, {1: 25}, []),
    (25, 34, {1: 25}, [FINISHED, DELETE_STARTED]),
    (35, 44, {1: 35, 2: 40}, [DELETE_STARTED, DELETE_FINISHED]),
)


@dataclass(frozen=True)
class World:
    """What sound requests are made of.

    Attributes:
        partitions: known, empty, on hold, being deleted, deleted, and one that never was.
        segments: as they were added.
        page_tokens: of the queries of this world; answers add theirs.
        objects: that RSM stores.
    """

    partitions: Sequence[segment_pb.TopicIdPartition]
    segments: Sequence[segment_pb.RemoteLogSegmentMetadata]
    page_tokens: list[str]
    objects: Sequence[storage_pb.ObjectLocation] = ()

    @property
    def topic_ids(self) -> list[str]:
        return sorted({tp.topic_id for tp in self.partitions})

    @property
    def topics(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})


def make_world(rlmm: RemoteLogMetadataManager, seed: str) -> World:
    """A world of its own for each seed."""
    random = Random(seed)
    tps = [*_topic(random, 6), *_topic(random, 2)]
    lively, marked, going, gone, empty, _never, held, swept = tps
    for each in all_holds(rlmm):  # the requests for an earlier world may have set some
        if each.topic_id is None:
            rlmm.end_hold(each)
    rlmm.on_partition_leadership_changes([PartitionLeadership(lively, 2)], [], BROKER)
    segments = _fill(rlmm, [lively, marked, held, swept], random)
    taken(rlmm, report_of(lively, leader_epoch=3))
    rlmm.raise_log_start_offset(lively, 3)
    rlmm.on_partition_leadership_changes([], [PartitionLeadership(empty)], BROKER)
    put_deletion(rlmm, marked, MARKED)
    put_deletion(rlmm, going, MARKED, PARTITION_STARTED)
    put_deletion(rlmm, gone, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    rlmm.put_topic_config(held.topic_id, {"sediment.retention.owner": "sweep"})
    hold(rlmm, held)
    return World(
        [topic_id_partition_to_proto(tp) for tp in tps],
        [metadata_to_proto(each) for each in segments],
        list(_page_tokens(rlmm, lively)),
    )


def _topic(random: Random, partitions: int) -> Iterator[TopicIdPartition]:
    topic_id = UUID(int=random.getrandbits(128), version=4)
    for number in range(partitions):
        yield TopicIdPartition(topic_id, f"fuzzed-{topic_id.hex[:8]}", number)


def _fill(
    rlmm: RemoteLogMetadataManager, tps: Sequence[TopicIdPartition], random: Random
) -> list[RemoteLogSegmentMetadata]:
    made: list[tuple[RemoteLogSegmentMetadata, Sequence[RemoteLogSegmentState]]] = []
    for tp in tps:
        for start, end, epochs, states in _SEGMENTS:
            attempt = RemoteLogSegmentId(tp, UUID(int=random.getrandbits(128), version=4))
            begun = replace(segment(tp, start, end, epochs), remote_log_segment_id=attempt)
            made.append((begun, states))
    rlmm.add_remote_log_segment_metadata_batch([SegmentAddition(begun) for begun, _ in made])
    why = MutationContext(plan_id=PLAN)
    for step in range(2):
        rlmm.update_remote_log_segment_metadata_batch(
            [
                SegmentUpdate(update_to(begun, states[step]), why)
                for begun, states in made
                if len(states) > step
            ]
        )
    return [begun for begun, _ in made]


def _page_tokens(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> Iterator[str]:
    yield rlmm.list_remote_log_segments(tp, page_size=1).next_page_token
    yield rlmm.list_partitions(page_size=1).next_page_token
    yield rlmm.list_events(EventQuery(tp), page_size=1).next_page_token
