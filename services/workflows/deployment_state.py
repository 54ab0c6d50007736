"""Keep in the bucket what a bucket does not know, and put it back after a rebuild."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal
from uuid import UUID

from pydantic import TypeAdapter

from services.api.calls import MutationContext
from services.api.deployment_state import DeploymentState, KeptTopic
from services.api.errors import (
    CorruptSegmentError,
    DeletionRefusedError,
    PermissionDeniedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segment_objects import SegmentObjects
from services.api.topic_config import topic_config
from services.common.inflate import (
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    compressed,
    inflate,
)

HEAD = "topics"
"""The name of the part that is written last, and names the others."""

_VERSION = 1
_PART_BYTES = 1024 * 1024
"""Of JSON, before compression; one topic may be larger."""

_MOST_BYTES = 64 * 1024 * 1024
"""Of a part's JSON when it is read."""

_NO_BROKER = -1
_CONTEXT = MutationContext(reason="rebuild: from the state in the bucket")
_ERRORS_OF_RUN = (PermissionDeniedError, ThrottledError, RetriableRemoteStorageError)


@dataclass(frozen=True, slots=True)
class Head:
    """What the bucket has, without the topics.

    Attributes:
        deployment_id, changes: see DeploymentState.
        slot: of the parts' names; it alternates, so that a run that is killed spoils nothing.
        is_settled: a rebuild has put the state back, so that any database may replace it.
    """

    deployment_id: UUID
    changes: int
    kept_at_ms: int
    slot: Literal["a", "b"]
    parts: int
    is_settled: bool = False
    version: int = _VERSION


_HEAD = TypeAdapter(Head)
_TOPIC = TypeAdapter(KeptTopic)


def read_head(objects: SegmentObjects) -> Head | None:
    """Read what the bucket has; None if nothing was kept.

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


def topics_from_bytes(name: str, data: bytes) -> list[KeptTopic]:
    """Parse a part.

    Raises:
        CorruptSegmentError: it is none; names it.
    """
    try:
        lines = inflate(Codec.GZIP, data, _MOST_BYTES).splitlines()
        return [_TOPIC.validate_json(line) for line in lines]
    except (ValueError, DamagedDataError, InflatedTooLargeError) as e:
        raise _damaged(name, e) from e


def refusal(head: Head | None, state: DeploymentState, topics: Iterable[KeptTopic] = ()) -> str:
    """Return why a database must not replace what is kept; "" if it may.

    A database that is new, or was restored, knows less than the bucket until it is rebuilt. One
    that was restored may have seen more changes since: `topics`, those of the head, show it too.
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


def _later_topic(state: DeploymentState, topics: Iterable[KeptTopic]) -> str:
    """Return a topic of which the database knows less; "" if there is none.

    In one database neither the revision of settings nor a log start ever falls.
    """
    known = {each.topic_id: each for each in state.topics}
    for kept in topics:
        now = known.get(kept.topic_id, KeptTopic(kept.topic_id, kept.topic))
        starts = kept.log_starts.items()
        is_lower = any(now.log_starts.get(partition, 0) < start for partition, start in starts)
        if is_lower or now.settings_revision < kept.settings_revision:
            return kept.topic
    return ""


def keep(objects: SegmentObjects, state: DeploymentState, before: Head | None) -> Head:
    """Write the state into the bucket in place of `before`."""
    slot: Literal["a", "b"] = "b" if before is not None and before.slot == "a" else "a"
    parts = 0
    for parts, part in enumerate(_parts(state.topics), start=1):
        objects.put_deployment_state(_part_name(slot, parts - 1), part)
    head = Head(state.deployment_id, state.changes, time.time_ns() // 1_000_000, slot, parts)
    _put_head(objects, head)
    return head


def settle(objects: SegmentObjects, head: Head) -> None:
    """Note that the state was put back."""
    _put_head(objects, replace(head, is_settled=True))


def kept_topics(objects: SegmentObjects, head: Head) -> Iterator[KeptTopic]:
    """Read the topics of a head.

    Raises:
        CorruptSegmentError: a part is missing, or cannot be parsed.
    """
    for number in range(head.parts):
        yield from _read_part(objects, _part_name(head.slot, number))


def _read_part(objects: SegmentObjects, name: str) -> list[KeptTopic]:
    try:
        return topics_from_bytes(name, objects.deployment_state(name))
    except RemoteResourceNotFoundError as e:
        raise _damaged(name, e) from e


@dataclass(slots=True)
class PutBack:
    """What was put back, in topics or partitions; `refused` has a reason for each that was not."""

    settings: int = 0
    log_starts: int = 0
    marks: int = 0
    refused: list[str] = field(default_factory=list)


def put_settings_back(
    rlmm: RemoteLogMetadataManager,
    topics: Iterable[KeptTopic],
    *,
    is_settled: bool,
    apply: bool,
) -> PutBack:
    """Put the settings of topics of which RLMM has none, or earlier ones. No hold is taken away.

    Args:
        is_settled: see Head: what RLMM has was put back, or is later.
        apply: False: only count them.
    """
    done = PutBack()
    for topic in topics:
        if topic.settings_revision:
            put = partial(_put_settings, rlmm, topic, is_settled=is_settled, apply=apply)
            done.settings += _tried(done, f"settings of {topic.topic}", put)
    return done


def put_log_starts_back(rlmm: RemoteLogMetadataManager, topics: Iterable[KeptTopic]) -> PutBack:
    """Raise log starts, whatever the settings of the topics. RLMM must have frozen deletions."""
    done = PutBack()
    for topic in topics:
        for partition, offset in topic.log_starts.items():
            change = partial(_raise_log_start, rlmm, topic, partition, offset)
            what = f"log start {offset} of {topic.topic}-{partition}"
            done.log_starts += _tried(done, what, change)
    return done


def put_marks_back(
    rlmm: RemoteLogMetadataManager, topics: Iterable[KeptTopic], done: PutBack
) -> None:
    """Mark the partitions that were being deleted. RLMM must not freeze deletions any more.

    Nothing to do once the head is settled: they may have been taken away since.
    """
    for topic in topics:
        for partition in topic.marked:
            what = f"deletion of {topic.topic}-{partition}"
            done.marks += _tried(done, what, partial(_mark, rlmm, topic, partition))


def _put_settings(
    rlmm: RemoteLogMetadataManager, topic: KeptTopic, *, is_settled: bool, apply: bool
) -> bool:
    stored = rlmm.topic_config(topic.topic_id)
    if topic.settings_revision <= stored.revision or stored.entries == topic.settings:
        return False
    if is_settled and stored.revision:
        return False
    if stored.config.hold and not topic_config(topic.settings).hold:
        raise DeletionRefusedError(
            "the topic is on hold, and the kept settings have no hold; put the settings that it "
            "is to have with `sediment topics set`"
        )
    if apply:
        rlmm.put_topic_config(topic.topic_id, topic.settings, stored.revision, _CONTEXT)
    return True


def _raise_log_start(
    rlmm: RemoteLogMetadataManager, topic: KeptTopic, partition: int, offset: int
) -> bool:
    tp = TopicIdPartition(topic.topic_id, topic.topic, partition)
    return rlmm.raise_log_start_offset(tp, offset, _CONTEXT, restores=True).applied


def _mark(rlmm: RemoteLogMetadataManager, topic: KeptTopic, partition: int) -> bool:
    tp = TopicIdPartition(topic.topic_id, topic.topic, partition)
    [revision] = rlmm.partition_revisions([tp])
    # A mark would make an unknown partition known. What RLMM knows later than the bucket is either
    # marked still, or was undeleted since.
    if not 0 < revision < topic.marked[partition]:
        return False
    marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
    now_ms = time.time_ns() // 1_000_000
    metadata = RemotePartitionDeleteMetadata(tp, marked, now_ms, _NO_BROKER)
    return rlmm.put_remote_partition_delete_metadata(metadata, _CONTEXT).applied


def _tried(done: PutBack, what: str, change: Callable[[], bool]) -> bool:
    """Make a change; note why RLMM refuses it. What RLMM does not know has no segments."""
    try:
        return change()
    except RemoteResourceNotFoundError:
        return False
    except _ERRORS_OF_RUN:
        raise
    except RemoteStorageError as e:
        done.refused.append(f"{what}: {e}")
        return False


def _parts(topics: Iterable[KeptTopic]) -> Iterator[bytes]:
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
