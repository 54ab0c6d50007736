"""List, configure and delete topics: `sediment topics`."""

import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from services.api.calls import MutationContext
from services.api.errors import ConcurrentUpdateError, RemoteResourceNotFoundError
from services.api.ids import uuid_to_text
from services.api.offset_queries import RecordsToDelete
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_manager import FetchError
from services.api.remote_log_metadata_manager import PartitionSummary, RemoteLogMetadataManager
from services.api.topic_config import LOCAL_RETENTION_OWNER, MEANINGS, StoredTopicConfig
from services.cli.command import argument, option, toggle
from services.cli.connections import (
    Call,
    Topic,
    TopicPartition,
    Topics,
    command_group,
    completed,
    with_services,
)
from services.cli.local_retention import put_owner
from services.cli.names import chosen_topics, find_readable_partition, find_topic
from services.cli.offsets import exit_code_of_fetch
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, Cells, CommandError, say
from services.cli.tables import Wide
from services.common.quantities import DURATION_MS, SIZE_BYTES, counted
from services.common.retry import replan
from services.views.documents import Json
from services.views.texts import partition_text, time_text
from services.views.topics import TopicFigures

_BeforeAndAfter: TypeAlias = tuple[StoredTopicConfig, StoredTopicConfig]
_REMOVED = (RemotePartitionDeleteState.DELETE_PARTITION_FINISHED,)

app = command_group("List, configure and delete topics.")


@app.command("list")
@with_services("rlmm", limit="--limit")
def list_topics(
    call: Call,
    topics: Topics = None,
    removed: bool = toggle("--removed", "Those whose partitions were removed."),
) -> None:
    """List the topics in the tier with their settings."""
    with call.rlmm_client() as manager:
        listed = chosen_topics(manager, topics, _REMOVED if removed else ())
        call.show_each(
            listed,
            lambda topic: _as_json(topic, manager.topic_config(topic.topic_id)),
            "topics",
            lambda topic: _as_row(topic, manager.topic_config(topic.topic_id), removed),
        )


def _as_row(topic: TopicFigures, stored: StoredTopicConfig, removed: bool) -> Cells:
    ends = "removed" if removed else "being deleted"
    texts = [f"{topic.deleting:,} {ends}"] if topic.deleting else []
    texts += [f"{name}={value}" for name, value in sorted(stored.entries.items())]
    id = uuid_to_text(topic.topic_id)
    return {
        "topic": topic.name,
        Wide("topic id"): id,
        "partitions": len(topic.partitions),
        "settings": " ".join(texts) or "-",
    }


@app.command("show")
@with_services("rlmm")
def show_topic(call: Call, name: Topic) -> None:
    """Show the settings of a topic."""
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        _show(topic, manager.topic_config(topic.topic_id), call)


_SETTINGS = "\n".join(
    textwrap.fill(meaning, 76, initial_indent=f"  {name:<28}  ", subsequent_indent=" " * 32)
    for name, meaning in MEANINGS.items()
)


@app.command(
    "set",
    help=f"Set or unset settings of a topic; keep its others.\n\n\b\nSettings:\n{_SETTINGS}",
)
@with_services("rlmm", "rlm")
def set_topic(
    call: Call,
    name: Topic,
    settings: list[str] | None = argument(
        "For example retention.ms=604800000.",
        default=None,
        metavar="KEY=VALUE",
        autocompletion=completed("KEY=VALUE"),
    ),
    unset: list[str] | None = option(
        "Remove a setting; may be repeated.", metavar="KEY", autocompletion=completed("KEY")
    ),
    now: bool = toggle("--now", "Let nothing wait that the settings delete."),
    yes: bool = toggle("--yes", "Let RLM delete what consumer groups have yet to read."),
) -> None:
    changes, removed = _parsed(settings or []), unset or []
    both = sorted(set(changes) & set(removed))
    if both:
        raise CommandError(f"{both[0]} is both set and unset; pass one of the two")
    if not changes and not removed and not now:
        raise CommandError("nothing to change: pass KEY=VALUE or --unset KEY")
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)

        def put(changes: Mapping[str, str], unset: Sequence[str]) -> _BeforeAndAfter:
            return _put(manager, topic, changes, unset, now=now)

        if LOCAL_RETENTION_OWNER in {*changes, *removed}:
            present = manager.topic_config(topic.topic_id).entries
            with call.rlm_client() as rlm:
                before, after = put_owner(rlm, topic, present, changes, removed, put, yes=yes)
        else:
            before, after = put(changes, removed)
        _show(topic, after, call)
    if after.revision == before.revision:
        say(f"topic {topic.name} already has these settings; nothing was changed")
    if after.waits_until_ms is not None:
        say(
            f"what only these settings delete waits until {time_text(after.waits_until_ms)}: "
            f"`sediment retention` lists it, and `sediment topics set {name} --now` ends the wait"
        )


@app.command("delete")
@with_services("rlmm")
def delete_topic(
    call: Call,
    name: Topic,
    yes: bool = toggle("--yes", "Confirm the deletion."),
) -> None:
    """Mark all partitions of a topic for deletion.

    Nothing can be added to them from then on. Every RLM removes their data and metadata once they
    have been marked for RLM_DELETION_GRACE_MS (an hour); so does `sediment sweep removal --apply`.
    Until then `sediment partitions undelete` removes the mark. Safe to repeat.
    """
    with call.rlmm_client() as manager:
        topic = find_topic(manager, name)
        if not yes:
            raise CommandError(
                f"this permanently deletes everything that the tier holds of topic {topic.name} "
                f"({uuid_to_text(topic.topic_id)}), {counted(len(topic.partitions), 'partition')}; "
                "pass --yes to confirm"
            )
        marked = sum(_mark(manager, summary) for summary in topic.partitions)
    count = len(topic.partitions)
    repeated = "" if marked else "; all of them were marked before"
    call.show(
        topic.as_json() | {"partitions": count, "marked": marked},
        lines=[
            f"topic {topic.name}: {marked} of {counted(count, 'partition')} marked for deletion"
            f"{repeated}"
        ],
    )


@app.command("delete-records")
@with_services("rlmm", "rlm", has_output=False)
def delete_records(
    call: Call,
    topic_partition: TopicPartition,
    before: int = option(
        "Delete all records below this offset.", default=..., metavar="OFFSET", min=0
    ),
    yes: bool = toggle("--yes", "Confirm the deletion."),
) -> None:
    """Delete the oldest records of a partition, from the tier and from its broker.

    Asks the RLM beside the partition's leader. Safe to repeat.
    """
    with call.rlm_client() as rlm:
        tp = find_readable_partition(rlm, topic_partition, call)
        if not yes:
            what = f"this deletes {partition_text(tp)} below offset {before} in tier and broker"
            raise CommandError(f"{what}; pass --yes to confirm")
        (raised,) = rlm.delete_records((RecordsToDelete(tp, before),), brokers_too=True)
    if raised.error is not FetchError.NONE:
        text = f"{partition_text(tp)}: nothing was deleted: {raised.error_message}"
        raise CommandError(text, exit_code_of_fetch(raised.error))
    say(f"{partition_text(tp)}: the tier begins at offset {raised.log_start_offset}")
    if raised.local_error:
        raise CommandError(f"the broker still has them: {raised.local_error}", EXIT_PARTIAL)


def _parsed(assignments: Sequence[str]) -> dict[str, str]:
    changes: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise CommandError(f"{text!r} is not KEY=VALUE, for example retention.ms=604800000")
        if key in changes:
            raise CommandError(f"{key} is set twice; pass one value")
        _require_kafkas_unit(key, value)
        changes[key] = value
    return changes


def _require_kafkas_unit(key: str, value: str) -> None:
    """Refuse a value with a unit: Kafka's names have one."""
    is_ms, is_bytes = key.endswith(".ms"), key.endswith(".bytes")
    if value[-1:].isalpha() and (is_ms or is_bytes):
        with suppress(ValueError):
            number = (DURATION_MS if is_ms else SIZE_BYTES)(value)
            unit = "milliseconds" if is_ms else "bytes"
            raise CommandError(f"{key} is a number of {unit}: {value} is {number}")


def _put(
    manager: RemoteLogMetadataManager,
    topic: TopicFigures,
    changes: Mapping[str, str],
    unset: Sequence[str],
    *,
    now: bool,
) -> _BeforeAndAfter:
    """Change settings at the revision at which they were read; return them before and after."""

    def put(before: StoredTopicConfig) -> _BeforeAndAfter:
        missing = [key for key in unset if key not in before.entries]
        if missing:
            raise CommandError(
                f"{missing[0]} is not set for topic {topic.name}; nothing was changed"
            )
        others = {key: value for key, value in before.entries.items() if key not in unset}
        context = MutationContext(reason="sediment topics set")
        entries = {**others, **changes}
        after = manager.put_topic_config(topic.topic_id, entries, before.revision, context, now=now)
        return before, after

    try:
        return replan(put, lambda: manager.topic_config(topic.topic_id))
    except ConcurrentUpdateError as e:
        raise CommandError(
            f"topic {topic.name}: its settings keep changing; run the command again", EXIT_FAILED
        ) from e


def _mark(manager: RemoteLogMetadataManager, summary: PartitionSummary) -> bool:
    """Mark a partition for deletion; return whether this call marked it."""
    from services.workflows.deletion import UNKNOWN_BROKER

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


def _show(topic: TopicFigures, stored: StoredTopicConfig, call: Call) -> None:
    title = f"{topic.name}: settings at revision {stored.revision}"
    deleting = f", {topic.deleting} of them being deleted" if topic.deleting else ""
    id, count = uuid_to_text(topic.topic_id), counted(len(topic.partitions), "partition")
    call.show(
        _as_json(topic, stored),
        (title, ("setting", "value"), sorted(stored.entries.items())),
        lines=[f"topic id {id}, {count}{deleting}"],
    )


def _as_json(topic: TopicFigures, stored: StoredTopicConfig) -> Json:
    return {
        **topic.as_json(),
        "partitions": len(topic.partitions),
        "deleting_partitions": topic.deleting,
        "revision": stored.revision,
        "settings": dict(stored.entries),
        "waits_until_ms": stored.waits_until_ms,
        "earlier_settings": dict(stored.earlier),
    }
