"""List, configure and delete topics: `sediment topics`."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

import typer

from services.api.calls import MutationContext
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.partitions import (
    NO_SEGMENTS,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    SegmentTotals,
)
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.topic_config import StoredTopicConfig
from services.cli.connections import Call, Topic, command_group, with_services
from services.cli.output import EXIT_FAILED, CommandError, print_json, print_table, say
from services.common.retry import replan
from services.views.documents import Json
from services.workflows.deletion import UNKNOWN_BROKER

app = command_group("List, configure and delete topics.")


@dataclass
class KnownTopic:
    """A topic in the tier and its partitions."""

    topic_id: UUID
    name: str
    partitions: list[PartitionSummary] = field(default_factory=list)

    @property
    def totals(self) -> SegmentTotals:
        return sum((each.totals for each in self.partitions), NO_SEGMENTS)

    def as_json(self) -> Json:
        return {"topic": self.name, "topic_id": uuid_to_text(self.topic_id)}

    @property
    def deleting(self) -> int:
        return sum(p.delete_state is not None for p in self.partitions)


@app.command("list")
@with_services("rlmm")
def list_topics(call: Call) -> None:
    """List the topics in the tier with their settings."""
    with call.rlmm_client() as manager:
        found = [(topic, manager.topic_config(topic.topic_id)) for topic in known_topics(manager)]
    columns = ("topic", "partitions", "being deleted", "settings", "topic id")
    call.show_each(
        found, lambda each: _as_json(*each), "Topics", columns, lambda each: _as_row(*each)
    )


def _as_row(topic: KnownTopic, stored: StoredTopicConfig) -> tuple[object, ...]:
    settings = " ".join(f"{name}={value}" for name, value in sorted(stored.entries.items()))
    id = uuid_to_text(topic.topic_id)
    return topic.name, len(topic.partitions), topic.deleting, settings or "none", id


@app.command("show")
@with_services("rlmm")
def show_topic(call: Call, name: Topic) -> None:
    """Show the settings of a topic."""
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        _print(topic, manager.topic_config(topic.topic_id), call)


@app.command("set")
@with_services("rlmm")
def set_topic(
    call: Call,
    name: Topic,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="For example retention.ms=604800000."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Remove a setting; may be repeated.")
    ] = None,
) -> None:
    """Set or unset settings of a topic; keep its others."""
    changes, removed = _parsed(settings or []), unset or []
    both = sorted(set(changes) & set(removed))
    if both:
        raise CommandError(f"{both[0]} is both set and unset; pass one of the two")
    if not changes and not removed:
        raise CommandError("nothing to change: pass KEY=VALUE or --unset KEY")
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        before, after = _put(manager, topic, changes, removed)
        _print(topic, after, call)
    if after.revision == before.revision:
        say(f"topic {topic.name} already has these settings; nothing was changed")


@app.command("delete")
@with_services("rlmm")
def delete_topic(
    call: Call,
    name: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
) -> None:
    """Mark all partitions of a topic for deletion.

    Nothing can be added to them from then on. Every RLM removes their data and metadata once they
    have been marked for RLM_DELETION_GRACE_MS (an hour); so does `sediment sweep removal --apply`.
    Until then `sediment partitions undelete` takes the mark back. Safe to repeat.
    """
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        if not yes:
            raise CommandError(
                f"this permanently deletes everything that the tier holds of topic {topic.name} "
                f"({uuid_to_text(topic.topic_id)}), {len(topic.partitions)} partition(s); pass "
                "--yes to confirm"
            )
        marked = sum(_mark(manager, summary) for summary in topic.partitions)
    if call.is_json:
        print_json(topic.as_json() | {"partitions": len(topic.partitions), "marked": marked})
        return
    say(
        f"topic {topic.name}: {marked} of {len(topic.partitions)} partition(s) marked for deletion"
        f"{'' if marked else '; all of them were marked before'}"
    )


def known_topics(manager: RemoteLogMetadataManager, name: str = "") -> list[KnownTopic]:
    """List the topics in the tier, or those of one name, ordered by name and id."""
    found: dict[UUID, KnownTopic] = {}
    for summary in all_partitions(manager, topic=name):
        tp = summary.topic_id_partition
        topic = found.setdefault(tp.topic_id, KnownTopic(tp.topic_id, tp.topic))
        topic.partitions.append(summary)
    return sorted(found.values(), key=lambda topic: (topic.name, topic.topic_id.hex))


def chosen_topics(manager: RemoteLogMetadataManager, names: Sequence[str]) -> list[KnownTopic]:
    """List the topics of these names, each once; all topics if there are no names."""
    if not names:
        return known_topics(manager)
    found = {topic.topic_id: topic for topic in (find_topic(manager, name) for name in names)}
    return list(found.values())


def find_topic(manager: RemoteLogMetadataManager, text: str) -> KnownTopic:
    """Find a topic by NAME or TOPIC_ID:NAME.

    Raises:
        CommandError: the topic is unknown, or several topics have had this name.
        InvalidRequestError: TOPIC_ID is not an id.
    """
    id_text, colon, name = text.rpartition(":")
    found = known_topics(manager, name) if name else []
    if colon:
        topic_id = uuid_from_text(id_text, "topic id")
        found = [topic for topic in found if topic.topic_id == topic_id]
    if not found:
        raise CommandError(f"the tier has no topic {text}; `sediment topics list` lists its topics")
    if len(found) > 1:
        ids = ", ".join(f"{uuid_to_text(topic.topic_id)}:{name}" for topic in found)
        raise CommandError(f"several topics have had the name {name}; pass one of {ids}")
    return found[0]


def _parsed(assignments: Sequence[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise CommandError(f"{text!r} is not KEY=VALUE, for example retention.ms=604800000")
        if key in changes:
            raise CommandError(f"{key} is set twice; pass one value")
        changes[key] = value
    return changes


def _put(
    manager: RemoteLogMetadataManager,
    topic: KnownTopic,
    changes: Mapping[str, str],
    unset: Sequence[str],
) -> tuple[StoredTopicConfig, StoredTopicConfig]:
    """Change settings at the revision at which they were read; return them before and after."""

    def put(before: StoredTopicConfig) -> tuple[StoredTopicConfig, StoredTopicConfig]:
        missing = [key for key in unset if key not in before.entries]
        if missing:
            raise CommandError(
                f"{missing[0]} is not set for topic {topic.name}; nothing was changed"
            )
        kept = {key: value for key, value in before.entries.items() if key not in unset}
        context = MutationContext(reason="sediment topics set")
        entries = {**kept, **changes}
        return before, manager.put_topic_config(topic.topic_id, entries, before.revision, context)

    try:
        return replan(put, lambda: manager.topic_config(topic.topic_id))
    except ConcurrentUpdateError as e:
        raise CommandError(
            f"topic {topic.name}: its settings keep changing; run the command again", EXIT_FAILED
        ) from e


def _mark(manager: RemoteLogMetadataManager, summary: PartitionSummary) -> bool:
    """Mark a partition for deletion; return whether this call marked it."""
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


def _print(topic: KnownTopic, stored: StoredTopicConfig, call: Call) -> None:
    if call.is_json:
        print_json(_as_json(topic, stored))
        return
    title = f"{topic.name}, settings at revision {stored.revision}"
    print_table(title, ("setting", "value"), sorted(stored.entries.items()))
    deleting = f", {topic.deleting} of them being deleted" if topic.deleting else ""
    say(f"topic id {uuid_to_text(topic.topic_id)}, {len(topic.partitions)} partition(s){deleting}")


def _as_json(topic: KnownTopic, stored: StoredTopicConfig) -> Json:
    return {
        **topic.as_json(),
        "partitions": len(topic.partitions),
        "deleting_partitions": topic.deleting,
        "revision": stored.revision,
        "settings": dict(stored.entries),
    }
