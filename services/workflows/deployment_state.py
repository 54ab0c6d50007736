"""Keep in the bucket what a bucket does not know, and put it back after a rebuild."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal
from uuid import UUID

from pydantic import TypeAdapter

from services.api.calls import MutationContext
from services.api.deployment_state import DeploymentState, TopicState
from services.api.errors import (
    CorruptSegmentError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.holds import Hold, HoldKind
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_holds
from services.api.segment_objects import SegmentObjects
from services.api.topic_config import topic_config
from services.common.inflate import (
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    compressed,
    inflate,
)
from services.workflows.deletion import UNKNOWN_BROKER

HEAD = "topics"
"""The name of the part that is written last, and names the others."""

_VERSION = 1
_PART_BYTES = 1024 * 1024
"""Of JSON, before compression; one topic may be larger."""

_MOST_BYTES = 64 * 1024 * 1024
"""Of a part's JSON when it is read."""

_CONTEXT = MutationContext(reason="rebuild: from the state in the bucket")
ERRORS_OF_RUN = (PermissionDeniedError, ThrottledError, RetriableRemoteStorageError)
"""Errors of a whole run; any other error of RLMM refuses one segment, or one topic."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the bucket has, without the topics.

    Attributes:
        deployment_id, changes: see DeploymentState.
        slot: of the parts' names; it alternates, so that a run that is killed spoils nothing.
        is_settled: a rebuild has put the state back, so that any database may replace it.
        holds: those of all topics.
    """

    deployment_id: UUID
    changes: int
    kept_at_ms: int
    slot: Literal["a", "b"]
    parts: int
    is_settled: bool = False
    version: int = _VERSION
    holds: tuple[Hold, ...] = ()


_HEAD = TypeAdapter(Head)
_TOPIC = TypeAdapter(TopicState)


def read_head(objects: SegmentObjects) -> Head | None:
    """Read the head in the bucket; None if there is none.

    Raises:
        CorruptSegmentError: it cannot be parsed.
    """
    try:
        return head_from_bytes(objects.deployment_state(HEAD))
    except RemoteResourceNotFoundError:
        return None


def head_from_bytes(data: bytes) -> Head:
    """Parse a head.

    Raises:
        CorruptSegmentError: it is none, or of a later release.
    """
    try:
        head = _HEAD.validate_json(data)
    except ValueError as e:
        raise _damaged(HEAD, e) from e
    if head.version != _VERSION:
        raise _damaged(HEAD, f"version {head.version}, this release knows {_VERSION}")
    return head


def topics_from_bytes(name: str, data: bytes) -> list[TopicState]:
    """Parse a part.

    Raises:
        CorruptSegmentError: it is none; names it.
    """
    try:
        lines = inflate(Codec.GZIP, data, _MOST_BYTES).splitlines()
        return [_TOPIC.validate_json(line) for line in lines]
    except (ValueError, DamagedDataError, InflatedTooLargeError) as e:
        raise _damaged(name, e) from e


def refusal(head: Head | None, state: DeploymentState, topics: Iterable[TopicState] = ()) -> str:
    """Return why a database must not replace what is kept; "" if it may.

    A database that is new, or was restored, knows less than the bucket until it is rebuilt. One
    that was restored may have had more changes since: `topics`, those of the head, show it too.
    """
    if head is None or head.is_settled:
        return ""
    if head.deployment_id != state.deployment_id:
        which = f"is of the deployment {uuid_to_text(head.deployment_id)}, another database's"
    elif head.changes > state.changes:
        which = f"has {head.changes} changes, and this database {state.changes}"
    elif lost := _later_topic(state, topics):
        which = f"has later settings or log starts of the topic {lost}"
    else:
        return ""
    return (
        f"the state in the bucket {which}; if the database was lost or restored, run `sediment db "
        "rebuild --apply` and `sediment db confirm-rebuild`"
    )


def _later_topic(state: DeploymentState, topics: Iterable[TopicState]) -> str:
    """Return a topic of which the database knows less; "" if there is none.

    In one database neither the revision of settings nor a log start ever falls.
    """
    known = {each.topic_id: each for each in state.topics}
    for kept in topics:
        if kept.topic_id in state.purged:
            continue
        now = known.get(kept.topic_id, TopicState(kept.topic_id, kept.topic))
        starts = kept.log_starts.items()
        is_lower = any(now.log_starts.get(partition, 0) < start for partition, start in starts)
        if is_lower or now.settings_revision < kept.settings_revision:
            return kept.topic
    return ""


def store_state(objects: SegmentObjects, state: DeploymentState, before: Head | None) -> Head:
    """Write the state into the bucket in place of `before`."""
    slot: Literal["a", "b"] = "b" if before is not None and before.slot == "a" else "a"
    parts = 0
    for parts, part in enumerate(_parts(state.topics), start=1):
        objects.put_deployment_state(_part_name(slot, parts - 1), part)
    now_ms, holds = time.time_ns() // 1_000_000, state.holds
    head = Head(state.deployment_id, state.changes, now_ms, slot, parts, holds=holds)
    _put_head(objects, head)
    return head


def settle(objects: SegmentObjects, head: Head) -> None:
    """Record that the state was put back."""
    _put_head(objects, replace(head, is_settled=True))


def kept_topics(objects: SegmentObjects, head: Head) -> Iterator[TopicState]:
    """Read the topics of a head.

    Raises:
        CorruptSegmentError: a part is missing, or cannot be parsed.
    """
    for number in range(head.parts):
        yield from _read_part(objects, _part_name(head.slot, number))


def _read_part(objects: SegmentObjects, name: str) -> list[TopicState]:
    try:
        return topics_from_bytes(name, objects.deployment_state(name))
    except RemoteResourceNotFoundError as e:
        raise _damaged(name, e) from e


@dataclass(slots=True)
class PutBack:
    """What was put back, in topics or partitions; `refused` has a reason for each that was not."""

    settings: int = 0
    holds: int = 0
    log_starts: int = 0
    marks: int = 0
    refused: list[str] = field(default_factory=list)

    def tried(self, what: str, change: Callable[[], bool]) -> bool:
        """Make a change, or record why RLMM refuses it. What RLMM does not know has no segments."""
        try:
            return change()
        except RemoteResourceNotFoundError:
            return False
        except ERRORS_OF_RUN:
            raise
        except RemoteStorageError as e:
            self.refused.append(f"{what}: {e}")
            return False


@dataclass(frozen=True, slots=True)
class KeptState:
    """What the bucket keeps of topics, to be put back into a rebuilt RLMM.

    Attributes:
        head: None if nothing is kept, or it cannot be read.
        unread: why it cannot be read; metadata is rebuilt without it.
    """

    head: Head | None
    topics: Sequence[TopicState] = ()
    unread: tuple[str, ...] = ()

    @property
    def waiting(self) -> dict[str, int]:
        """Return how many log starts and marks confirm_rebuild will put back."""
        return {
            "log_starts": sum(len(each.log_starts) for each in self.topics),
            "marks": sum(len(each.marked) for each in self.topics),
        }

    def put_settings_back(self, rlmm: RemoteLogMetadataManager, *, apply: bool) -> PutBack:
        """Put the settings of topics of which RLMM has none, or earlier ones, and missing holds.

        A hold that was ended after the state was kept is put back too: to keep too much is safe.

        Args:
            apply: False: only count them.
        """
        back = PutBack()
        # What RLMM has of a settled state was put back, or is later.
        is_settled = self.head is not None and self.head.is_settled
        for topic in self.topics:
            if topic.settings_revision:
                put = partial(_put_settings, rlmm, topic, is_settled=is_settled, apply=apply)
                back.settings += back.tried(f"settings of {topic.topic}", put)
        self._restore_holds(rlmm, back, apply=apply)
        back.refused += self.unread
        return back

    def _restore_holds(self, rlmm: RemoteLogMetadataManager, back: PutBack, *, apply: bool) -> None:
        now_ms = time.time_ns() // 1_000_000
        stored = {(each.name, each.topic_id, each.partition) for each in all_holds(rlmm)}
        kept = [*(self.head.holds if self.head else ()), *(h for t in self.topics for h in t.holds)]
        for hold in kept:
            is_stored = (hold.name, hold.topic_id, hold.partition) in stored
            if hold.lasts_at(now_ms) and not is_stored:
                put = partial(_put_hold, rlmm, hold, now_ms, apply=apply)
                back.holds += back.tried(f"hold {hold.name} of {hold.scope}", put)

    def put_log_starts_back(self, rlmm: RemoteLogMetadataManager) -> PutBack:
        """Raise log starts, whatever the topics' settings, while deletions are frozen."""
        back = PutBack()
        for topic in self.topics:
            for partition, offset in topic.log_starts.items():
                change = partial(_raise_log_start, rlmm, topic, partition, offset)
                what = f"log start {offset} of {topic.topic}-{partition}"
                back.log_starts += back.tried(what, change)
        return back

    def put_marks_back(self, rlmm: RemoteLogMetadataManager, back: PutBack) -> None:
        """Mark the partitions that were being deleted, after the freeze of deletions has ended.

        Nothing to do once the head is settled: they may have been taken away since.
        """
        for topic in self.topics:
            for partition in topic.marked:
                what = f"deletion of {topic.topic}-{partition}"
                back.marks += back.tried(what, partial(_mark, rlmm, topic, partition))


def read_kept(objects: SegmentObjects) -> KeptState:
    """Read what the bucket keeps."""
    try:
        head = read_head(objects)
        return KeptState(head, () if head is None else list(kept_topics(objects, head)))
    except CorruptSegmentError as e:
        return KeptState(None, unread=(str(e),))


def _put_settings(
    rlmm: RemoteLogMetadataManager, topic: TopicState, *, is_settled: bool, apply: bool
) -> bool:
    stored = rlmm.topic_config(topic.topic_id)
    if topic.settings_revision <= stored.revision or stored.entries == topic.settings:
        return False
    if is_settled and stored.revision:
        return False
    if apply:
        # A lower delay than RLMM knows is put at once, as it could not be put otherwise.
        kept, known = topic_config(topic.settings), stored.config
        now = kept.retention_change_delay_ms < known.retention_change_delay_ms
        rlmm.put_topic_config(topic.topic_id, topic.settings, stored.revision, _CONTEXT, now=now)
    return True


def _put_hold(rlmm: RemoteLogMetadataManager, hold: Hold, now_ms: int, *, apply: bool) -> bool:
    if apply and hold.kind is HoldKind.EXPORT and hold.until_ms is not None:
        rlmm.set_hold(replace(hold, until_ms=None), hold.until_ms - now_ms)
    elif apply:
        rlmm.set_hold(hold)
    elif hold.topic_id is not None:
        rlmm.topic_config(hold.topic_id)  # What RLMM does not know is not put back.
    return True


def _raise_log_start(
    rlmm: RemoteLogMetadataManager, topic: TopicState, partition: int, offset: int
) -> bool:
    tp = TopicIdPartition(topic.topic_id, topic.topic, partition)
    return rlmm.raise_log_start_offset(tp, offset, _CONTEXT, restores=True).applied


def _mark(rlmm: RemoteLogMetadataManager, topic: TopicState, partition: int) -> bool:
    tp = TopicIdPartition(topic.topic_id, topic.topic, partition)
    [revision] = rlmm.partition_revisions([tp])
    # A mark would make an unknown partition known. What RLMM knows later than the bucket is either
    # marked still, or was undeleted since.
    if not 0 < revision < topic.marked[partition]:
        return False
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    now_ms = time.time_ns() // 1_000_000
    metadata = RemotePartitionDeleteMetadata(tp, marked, now_ms, UNKNOWN_BROKER)
    return rlmm.put_remote_partition_delete_metadata(metadata, _CONTEXT).applied


def _parts(topics: Iterable[TopicState]) -> Iterator[bytes]:
    """Split the topics into parts of compressed lines of JSON."""
    lines, size_bytes = list[bytes](), 0
    for topic in topics:
        line = _TOPIC.dump_json(topic)
        lines.append(line)
        size_bytes += len(line)
        if size_bytes >= _PART_BYTES:
            yield compressed(b"\n".join(lines))
            lines, size_bytes = [], 0
    if lines:
        yield compressed(b"\n".join(lines))


def _part_name(slot: str, number: int) -> str:
    return f"{HEAD}-{slot}-{number}"


def _put_head(objects: SegmentObjects, head: Head) -> None:
    objects.put_deployment_state(HEAD, _HEAD.dump_json(head))


def _damaged(name: str, reason: object) -> CorruptSegmentError:
    line = str(reason).partition("\n")[0]
    return CorruptSegmentError(
        f"the deployment's state in the bucket, part {name}, cannot be read: {line}"
    )
