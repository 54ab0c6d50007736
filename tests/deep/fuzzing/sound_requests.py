"""Requests that look sound, from their message types alone: an RPC that is new is asked too.

What a field holds is decided by its type and by words in its name; the few shared messages whose
fields must fit together are made whole.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from services.api.ids import uuid_to_text
from services.api.segment_batches import SCAN_COLUMNS
from tests.deep.fuzzing.world import PLAN, World
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as storage_pb

Draw = st.DrawFn
LAST_OFFSET = 45
LAST_EPOCH = 3
SETTINGS: Final = {
    "retention.ms": "1000",
    "retention.bytes": "-1",
    "local.retention.ms": "500",
    "sediment.retention.owner": "sweep",
    "sediment.owner": "team",
    "remote.storage.enable": "true",
}
_HOLDS: Final = (
    (pb.HOLD_KIND_OPERATOR, "audit"),
    (pb.HOLD_KIND_LEGAL, "case 7"),
    (pb.HOLD_KIND_EXPORT, "lake"),
    (pb.HOLD_KIND_REBUILD, "rebuild"),
)
"""A name for each kind: it is of one kind in a scope."""
_UNTIL_MS = st.sampled_from([4_000_000_000_000, 5_000_000_000_000])
_TEXTS = st.sampled_from(["", "why", "run-1"])
_STRINGS: Final = FieldDescriptor.CPPTYPE_STRING
_INTEGERS: Final = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}
_NUMBERS: Final[dict[str, st.SearchStrategy[int]]] = {
    "shards": st.integers(1, 4),
    "shard": st.just(0),
    "page_size": st.integers(0, 3),
    "parts": st.integers(1, 50),
    "lease": st.integers(1_000, 60_000),
    "max_bytes": st.sampled_from([1_000_000, 100, 1]),
    "max_wait": st.sampled_from([0, 1, 10]),
    "location_id": st.sampled_from([0, 1, 1, 1]),
    "epoch": st.integers(0, LAST_EPOCH),
    "revision": st.integers(0, 30),
    "offset": st.integers(0, LAST_OFFSET),
    "_ms": st.sampled_from([0, 5_000, 6_000]),
    "broker": st.sampled_from([-1, 1, 2]),
}


def sound_requests(message_type: Descriptor, world: World) -> st.SearchStrategy[Message]:
    """Messages of the type, all of one partition as often as not."""

    @st.composite
    def request(draw: Draw) -> Message:
        focus = draw(st.sampled_from([world.partitions[0], *world.partitions]))
        partitions = draw(st.sampled_from([[focus], world.partitions]))
        return _Maker(draw, world, st.sampled_from(partitions)).message(message_type)

    return request()


class _Maker:
    """Draws the parts of one request."""

    def __init__(
        self,
        draw: Draw,
        world: World,
        partitions: st.SearchStrategy[segment_pb.TopicIdPartition],
    ) -> None:
        self._draw = draw
        self._world = world
        self._partitions = partitions
        self._named: set[str] = set()
        self._whole: dict[Descriptor, Callable[[], Message]] = {
            segment_pb.TopicIdPartition.DESCRIPTOR: self._partition,
            segment_pb.RemoteLogSegmentId.DESCRIPTOR: self._segment_id,
            segment_pb.RemoteLogSegmentMetadata.DESCRIPTOR: self._segment,
            segment_pb.RemoteLogSegmentMetadataUpdate.DESCRIPTOR: self._update,
            pb.PartitionReport.DESCRIPTOR: self._report,
            segment_pb.RlmEndpoint.DESCRIPTOR: self._endpoint,
            pb.Hold.DESCRIPTOR: self._hold,
            pb.ImportRemoteLogSegmentsRequest.DESCRIPTOR: self._import,
            pb.SetHoldRequest.DESCRIPTOR: self._hold_to_set,
            pb.EndHoldRequest.DESCRIPTOR: self._hold_to_end,
            storage_pb.ObjectLocation.DESCRIPTOR: self._object,
        }

    def message(self, message_type: Descriptor) -> Message:
        if message_type in self._whole:
            return self._whole[message_type]()
        made = GetMessageClass(message_type)()
        for field in message_type.fields:
            self._fill(made, field)
        _set_in_order(made, "start_offset", "end_offset")
        _set_in_order(made, "part", "parts")
        return made

    # --- fields -------------------------------------------------------------------------------

    def _fill(self, made: Any, field: FieldDescriptor) -> None:
        if field.is_repeated:
            self._fill_many(made, field)
        elif field.message_type is not None:
            if field.message_type is not segment_pb.MutationContext.DESCRIPTOR or self._chance(2):
                getattr(made, field.name).CopyFrom(self.message(field.message_type))
        elif not field.has_presence or self._chance(4):
            setattr(made, field.name, self._scalar(field))

    def _fill_many(self, made: Any, field: FieldDescriptor) -> None:
        values, kind = getattr(made, field.name), field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            names = self._draw(st.sets(st.sampled_from(sorted(SETTINGS)), max_size=3))
            values.update({name: SETTINGS[name] for name in sorted(names)})
        elif kind is not None:
            values.extend(self.message(kind) for _ in range(self._draw(st.integers(1, 3))))
        else:
            least = 0 if field.enum_type is not None else 1
            values.extend(self._scalar(field) for _ in range(self._draw(st.integers(least, 2))))

    def _scalar(self, field: FieldDescriptor) -> object:
        if field.enum_type is not None:
            first = 1 if field.is_repeated or self._chance(8, of=9) else 0
            return self._draw(st.sampled_from(range(first, len(field.enum_type.values))))
        if field.cpp_type == _STRINGS:
            return self._bytes() if field.type == FieldDescriptor.TYPE_BYTES else self._text(field)
        if field.cpp_type in _INTEGERS:
            words = [word for word in _NUMBERS if word in field.name]
            return self._draw(_NUMBERS[words[0]] if words else st.integers(0, 50))
        return self._draw(st.booleans())

    def _text(self, field: FieldDescriptor) -> str:
        name = field.name
        if name == "topic_id":
            return self._draw(self._partitions).topic_id
        if name == "topic":
            return self._draw(st.sampled_from(["", *self._world.topics]))
        if name == "page_token":
            return self._draw(st.sampled_from([""] * 9 + self._world.page_tokens))
        if name in ("id", "ids", "segment_id"):
            return self._attempt()
        if name == "instance_id":
            return self._draw(st.sampled_from(["AAECAwQFBgcICQoLDA0ODw", "EBESExQVFhcYGRobHB0eHw"]))
        if name == "topics":
            return self._draw(st.sampled_from(self._world.topics))
        if name == "kind":
            return "LOST_BEFORE_COPY"
        if name == "columns":
            return self._draw(st.sampled_from([column for column, _ in SCAN_COLUMNS]))
        if name == "plan_id":
            return self._draw(st.sampled_from(["", PLAN]))
        return self._draw(st.sampled_from(["r1", "r2"]) if name == "request_id" else _TEXTS)

    def _bytes(self) -> bytes:
        return self._draw(st.sampled_from([b"", b"x", bytes(128)]))

    # --- messages -----------------------------------------------------------------------------

    def _partition(self) -> segment_pb.TopicIdPartition:
        return self._draw(self._partitions)

    def _attempt(self) -> str:
        known = [each.remote_log_segment_id.id for each in self._world.segments]
        if self._chance(3, of=4):
            return self._draw(st.sampled_from(known))
        return uuid_to_text(self._draw(st.uuids(version=4)))

    def _segment_id(self) -> segment_pb.RemoteLogSegmentId:
        return self._known().remote_log_segment_id if self._chance(3, of=4) else self._new_id()

    def _new_id(self) -> segment_pb.RemoteLogSegmentId:
        return segment_pb.RemoteLogSegmentId(
            topic_id_partition=self._partition(), id=uuid_to_text(self._draw(st.uuids(version=4)))
        )

    def _known(self) -> segment_pb.RemoteLogSegmentMetadata:
        """One of the partition, where it has any, and that the request does not name yet."""
        partition = self._partition()
        others = [
            each
            for each in self._world.segments
            if each.remote_log_segment_id.id not in self._named
        ]
        its = [s for s in others if s.remote_log_segment_id.topic_id_partition == partition]
        found = self._draw(st.sampled_from(its or others))
        self._named.add(found.remote_log_segment_id.id)
        return found

    def _segment(self) -> segment_pb.RemoteLogSegmentMetadata:
        if not self._chance(5) if self._world.objects else self._chance(4):
            return self._known()
        draw = self._draw
        start = draw(st.integers(0, LAST_OFFSET))
        end = start + draw(st.integers(0, 15))
        made = segment_pb.RemoteLogSegmentMetadata(
            remote_log_segment_id=self._new_id(),
            start_offset=start,
            end_offset=end,
            max_timestamp_ms=draw(st.sampled_from([-1, 1_000])),
            broker_id=draw(_NUMBERS["broker"]),
            event_timestamp_ms=5_000,
            segment_size_in_bytes=draw(st.sampled_from([-1, 0, 1_000])),
            segment_leader_epochs=self._epochs(start, end),
            state=segment_pb.REMOTE_LOG_SEGMENT_STATE_COPY_SEGMENT_STARTED,
            txn_idx_empty=draw(st.booleans()),
        )
        if self._chance(4):
            made.custom_metadata = self._bytes()
        if self._chance(4):
            made.broker_leader_epoch = draw(st.integers(2, LAST_EPOCH))
        return made

    def _object(self) -> storage_pb.ObjectLocation:
        manifests = [each for each in self._world.objects if each.key.endswith(".manifest")]
        return self._draw(st.sampled_from(manifests) | st.sampled_from(self._world.objects))

    def _update(self) -> segment_pb.RemoteLogSegmentMetadataUpdate:
        states = (
            segment_pb.REMOTE_LOG_SEGMENT_STATE_COPY_SEGMENT_FINISHED,
            segment_pb.REMOTE_LOG_SEGMENT_STATE_DELETE_SEGMENT_STARTED,
            segment_pb.REMOTE_LOG_SEGMENT_STATE_DELETE_SEGMENT_FINISHED,
        )
        made = segment_pb.RemoteLogSegmentMetadataUpdate(
            remote_log_segment_id=self._segment_id(),
            event_timestamp_ms=6_000,
            state=self._draw(st.sampled_from(states)),
            broker_id=self._draw(_NUMBERS["broker"]),
        )
        if self._chance(4):
            made.custom_metadata = self._bytes()
        return made

    def _epochs(self, start: int, end: int) -> list[segment_pb.SegmentLeaderEpoch]:
        epochs = sorted(self._draw(st.sets(st.integers(0, LAST_EPOCH), min_size=1, max_size=3)))
        later = sorted(self._draw(st.integers(start, end)) for _ in epochs[1:])
        return [
            segment_pb.SegmentLeaderEpoch(leader_epoch=epoch, start_offset=offset)
            for epoch, offset in zip(epochs, [start, *later], strict=True)
        ]

    def _report(self) -> pb.PartitionReport:
        draw = self._draw
        end = draw(st.integers(LAST_OFFSET, LAST_OFFSET + 60))
        return pb.PartitionReport(
            topic_id_partition=self._partition(),
            broker_id=draw(_NUMBERS["broker"]),
            leader_epoch=LAST_EPOCH,
            report_number=draw(st.integers(1, 50)),
            leader_epochs=self._epochs(0, LAST_OFFSET),
            local_log_start_offset=draw(st.integers(0, LAST_OFFSET)),
            log_end_offset=end,
            high_watermark=draw(st.integers(0, end)),
            last_stable_offset=draw(st.integers(0, end)),
            only_local_bytes=draw(st.integers(0, 1_000)),
            copied_through_offset=draw(st.integers(-1, LAST_OFFSET)),
            local_trim_offset=-1,
        )

    def _endpoint(self) -> segment_pb.RlmEndpoint:
        one_of_two = st.sampled_from([1, 2])
        return segment_pb.RlmEndpoint(
            cluster_id=f"cluster-{self._draw(one_of_two)}",
            directory_id=f"directory-{self._draw(one_of_two)}",
            broker_id=self._draw(one_of_two),
            address=f"127.0.0.1:{self._draw(one_of_two)}",
        )

    def _import(self) -> pb.ImportRemoteLogSegmentsRequest:
        """Of no source in most cases: only the first item of a source has no previous position."""
        segments = [self._segment() for _ in range(self._draw(st.integers(1, 3)))]
        made = pb.ImportRemoteLogSegmentsRequest(segments=segments)
        made.context.reason = self._draw(_TEXTS)
        if self._chance(3):
            made.position.CopyFrom(
                pb.SourcePosition(
                    cluster_id="cluster-1",
                    topic_id=self._partition().topic_id,
                    partition=self._draw(st.integers(0, 50)),
                    next_offset=self._draw(st.integers(0, 50)),
                )
            )
        return made

    def _hold(self) -> pb.Hold:
        draw, partition = self._draw, self._partition()
        kind, name = draw(st.sampled_from(_HOLDS))
        if kind == pb.HOLD_KIND_REBUILD:
            return pb.Hold(name=name, kind=kind)
        made = pb.Hold(
            name=name,
            kind=kind,
            topic=partition.topic,
            topic_id=partition.topic_id,
            first_offset=draw(st.integers(0, LAST_OFFSET)),
            reason="why",
        )
        is_export = kind == pb.HOLD_KIND_EXPORT
        if is_export or self._chance(2):
            made.partition = partition.partition
        if not is_export and self._chance(2):
            made.last_offset = made.first_offset + draw(st.integers(0, 15))
        if not is_export and self._chance(3):
            made.until_ms = draw(_UNTIL_MS)
        return made

    def _hold_to_set(self) -> pb.SetHoldRequest:
        made = pb.SetHoldRequest(hold=self._hold())
        kind, is_timed = made.hold.kind, made.hold.HasField("until_ms")
        may_be_leased = kind != pb.HOLD_KIND_REBUILD and not is_timed
        if kind == pb.HOLD_KIND_EXPORT or (may_be_leased and self._chance(3)):
            made.lease_ms = self._draw(_NUMBERS["lease"])
        return made

    def _hold_to_end(self) -> pb.EndHoldRequest:
        context = segment_pb.MutationContext(reason=self._draw(_TEXTS))
        return pb.EndHoldRequest(hold=self._hold(), context=context)

    def _chance(self, part: int, of: int | None = None) -> bool:
        """One in `part`; with `of`, `part` of so many."""
        favourable, all_ = (1, part) if of is None else (part, of)
        return self._draw(st.integers(1, all_)) > all_ - favourable


def _set_in_order(made: Any, first: str, last: str) -> None:
    names = made.DESCRIPTOR.fields_by_name
    if first in names and last in names:
        low, high = sorted((getattr(made, first), getattr(made, last)))
        setattr(made, first, low)
        setattr(made, last, high)
