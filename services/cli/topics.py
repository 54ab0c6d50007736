"""`sediment topics`: what is set for a topic, and its end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from services.api.calls import MutationContext
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.topic_config import StoredTopicConfig
from services.cli.connections import connected_rlmm
from services.cli.output import EXIT_FAILED, CommandError, Format, print_json, print_table, say
from services.workflows.deletion import UNKNOWN_BROKER

_ATTEMPTS = 5


@dataclass
class KnownTopic:
    """A known topic."""

    topic_id: UUID
    name: str
    partitions: list[PartitionSummary] = field(default_factory=list)

    @property
    def deleting(self) -> int:
        return sum(p.delete_state is not None for p in self.partitions)


def list_topics(rlmm: str | None, data_dir: Path | None, output: Format) -> None:
    with connected_rlmm(rlmm, data_dir) as manager:
        found = [(topic, manager.topic_config(topic.topic_id)) for topic in _topics(manager)]
    if output is Format.JSON:
        for topic, stored in found:
            print_json(_as_json(topic, stored))
        return
    columns = ("topic", "partitions", "being deleted", "settings", "topic id")
    rows = (
        (
            topic.name,
            len(topic.partitions),
            topic.deleting,
            " ".join(f"{name}={value}" for name, value in sorted(stored.entries.items())) or "none",
            uuid_to_text(topic.topic_id),
        )
        for topic, stored in found
    )
    print_table("Topics", columns, rows)


def show_topic(name: str, rlmm: str | None, data_dir: Path | None, output: Format) -> None:
    with connected_rlmm(rlmm, data_dir) as manager:
        topic = find_topic(manager, name)
        _print(topic, manager.topic_config(topic.topic_id), output)


def set_topic(
    name: str,
    assignments: Sequence[str],
    unset: Sequence[str],
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    """Change some settings of a topic, and leave its others."""
    changes = _parsed(assignments)
    both = sorted(set(changes) & set(unset))
    if both:
        raise CommandError(f"{both[0]}: to be set and to be unset; say one of the two")
    if not changes and not unset:
        raise CommandError("nothing to set: name settings as KEY=VALUE, or use --unset KEY")
    with connected_rlmm(rlmm, data_dir) as manager:
        topic = find_topic(manager, name)
        before, after = _put(manager, topic, changes, unset)
        _print(topic, after, output)
    if after.revision == before.revision:
        say(f"topic {topic.name}: it was so before")


def delete_topic(
    name: str, yes: bool, rlmm: str | None, data_dir: Path | None, output: Format
) -> None:
    """Mark every partition of a topic for deletion; what deletes them then is a removal."""
    with connected_rlmm(rlmm, data_dir) as manager:
        topic = find_topic(manager, name)
        if not yes:
            raise CommandError(
                f"this deletes all that the tier has of topic {topic.name} "
                f"({uuid_to_text(topic.topic_id)}), {len(topic.partitions)} partition(s), for "
                "good; say --yes to do it"
            )
        marked = sum(_mark(manager, summary) for summary in topic.partitions)
    if output is Format.JSON:
        print_json(
            {
                "topic_id": uuid_to_text(topic.topic_id),
                "topic": topic.name,
                "partitions": len(topic.partitions),
                "marked": marked,
            }
        )
        return
    say(
        f"topic {topic.name}: {marked} of {len(topic.partitions)} partition(s) marked for deletion"
        f"{'' if marked else '; they were before'}"
    )


def _topics(manager: RemoteLogMetadataManager, name: str = "") -> list[KnownTopic]:
    """The known topics, or those of a name, by name and id."""
    found: dict[UUID, KnownTopic] = {}
    for summary in all_partitions(manager, topic=name):
        tp = summary.topic_id_partition
        topic = found.setdefault(tp.topic_id, KnownTopic(tp.topic_id, tp.topic))
        topic.partitions.append(summary)
    return sorted(found.values(), key=lambda topic: (topic.name, topic.topic_id.hex))


def find_topic(manager: RemoteLogMetadataManager, text: str) -> KnownTopic:
    """The known topic that is meant: NAME, or TOPIC_ID:NAME.

    Raises:
        CommandError: not known, or the name of several topics.
        InvalidRequestError: TOPIC_ID is none.
    """
    id_text, colon, name = text.rpartition(":")
    found = _topics(manager, name) if name else []
    if colon:
        topic_id = uuid_from_text(id_text, "topic id")
        found = [topic for topic in found if topic.topic_id == topic_id]
    if not found:
        raise CommandError(f"no topic {text} is known; `sediment topics list` lists them")
    if len(found) > 1:
        ids = ", ".join(f"{uuid_to_text(topic.topic_id)}:{name}" for topic in found)
        raise CommandError(f"several topics have had this name; say which: {ids}")
    return found[0]


def _parsed(assignments: Sequence[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise CommandError(f"{text!r} is not KEY=VALUE, for example retention.ms=604800000")
        if key in changes:
            raise CommandError(f"{key}: to be set twice; say one value")
        changes[key] = value
    return changes


def _put(
    manager: RemoteLogMetadataManager,
    topic: KnownTopic,
    changes: Mapping[str, str],
    unset: Sequence[str],
) -> tuple[StoredTopicConfig, StoredTopicConfig]:
    """What was stored before, and what is now; nobody else's change in between is lost."""
    for _ in range(_ATTEMPTS):
        before = manager.topic_config(topic.topic_id)
        missing = [key for key in unset if key not in before.entries]
        if missing:
            raise CommandError(f"{missing[0]}: not set for topic {topic.name}, nothing to unset")
        kept = {key: value for key, value in before.entries.items() if key not in unset}
        context = MutationContext(reason="sediment topics set")
        try:
            after = manager.put_topic_config(
                topic.topic_id, {**kept, **changes}, before.revision, context
            )
        except ConcurrentUpdateError:
            continue
        return before, after
    raise CommandError(
        f"topic {topic.name}: others change its settings at the same time; try again", EXIT_FAILED
    )


def _mark(manager: RemoteLogMetadataManager, summary: PartitionSummary) -> bool:
    """Whether this call marked it."""
    event = RemotePartitionDeleteMetadata(
        summary.topic_id_partition,
        RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
        time.time_ns() // 1_000_000,
        UNKNOWN_BROKER,
    )
    context = MutationContext(reason="sediment topics delete")
    try:
        return manager.put_remote_partition_delete_metadata(event, context).applied
    except RemoteResourceNotFoundError:
        return False  # removed since it was listed


def _print(topic: KnownTopic, stored: StoredTopicConfig, output: Format) -> None:
    if output is Format.JSON:
        print_json(_as_json(topic, stored))
        return
    title = f"{topic.name}, settings of revision {stored.revision}"
    print_table(title, ("setting", "value"), sorted(stored.entries.items()))
    deleting = f", {topic.deleting} of them being deleted" if topic.deleting else ""
    say(f"topic id {uuid_to_text(topic.topic_id)}, {len(topic.partitions)} partition(s){deleting}")


def _as_json(topic: KnownTopic, stored: StoredTopicConfig) -> dict[str, object]:
    return {
        "topic_id": uuid_to_text(topic.topic_id),
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "deleting_partitions": topic.deleting,
        "revision": stored.revision,
        "settings": dict(stored.entries),
    }
