"""`sediment partitions undelete` and `reset-epoch`: what puts a partition right by hand."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partition_queries import PartitionSummary
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.cli.connections import connected_rlmm
from services.cli.failures import EXIT_FAILED, CommandError
from services.cli.output import Format, print_json, say
from services.cli.topics import find_topic

NO_LEADER_EPOCH = -1
NOT_MARKED = "not marked for deletion"
_ATTEMPTS = 5


def undelete(
    topic: str,
    partition: int,
    reason: str,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    """Take the mark for deletion of one partition back."""
    with connected_rlmm(rlmm, data_dir) as manager, _known_all_along(topic, partition):
        found = _find_partition(manager, topic, partition)
        tp = found.topic_id_partition

        def look() -> Shown:
            return _mark_of(_find_partition(manager, topic, partition))

        def take_back(revision: int) -> MutationOutcome:
            context = MutationContext(reason=reason, expected_revision=revision)
            return manager.undelete_partition(tp, context)

        shown = _mark_of(found)
        try:
            outcome = _change_what_is_shown(tp, shown, look, take_back)
        except InvalidStateTransitionError as e:
            raise CommandError(f"{tp.topic}-{partition} cannot be brought back: {e}") from e
    done = f"it was {shown.text}, and is not any more"
    _tell(tp, outcome, done if outcome.applied else f"it was {NOT_MARKED}", output)


def reset_epoch(
    topic: str,
    partition: int,
    epoch: int,
    reason: str,
    yes: bool,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    """Set the highest broker leader epoch of one partition; NO_LEADER_EPOCH: none is known."""
    leader_epoch = None if epoch == NO_LEADER_EPOCH else epoch
    with connected_rlmm(rlmm, data_dir) as manager, _known_all_along(topic, partition):
        tp = _find_partition(manager, topic, partition).topic_id_partition

        def highest() -> Shown:
            state = manager.partition_state(tp)
            return Shown(_epoch_text(state.value.highest_broker_leader_epoch), state.revision)

        def reset(revision: int) -> MutationOutcome:
            context = MutationContext(reason=reason, expected_revision=revision)
            return manager.reset_leader_epoch(tp, leader_epoch, context)

        shown = highest()
        change = f"from {shown.text} to {_epoch_text(leader_epoch)}"
        if not yes:
            _ask(tp, leader_epoch, change)
        outcome = _change_what_is_shown(tp, shown, highest, reset)
    now = change if outcome.applied else f"{shown.text}, as it was before"
    _tell(tp, outcome, f"highest broker leader epoch: {now}", output)


@dataclass(frozen=True)
class Shown:
    """What an administrator decides on, and the partition's revision when it was read."""

    text: str
    revision: int


def _change_what_is_shown(
    tp: TopicIdPartition,
    shown: Shown,
    look: Callable[[], Shown],
    change: Callable[[int], MutationOutcome],
) -> MutationOutcome:
    """`change` at the revision that was shown, or at a later one that shows the same: copies and
    reports may go on meanwhile."""
    latest = shown
    for _ in range(_ATTEMPTS):
        try:
            return change(latest.revision)
        except ConcurrentUpdateError:
            latest = look()
        if latest.text != shown.text:
            raise CommandError(
                f"{tp.topic}-{tp.partition} was changed meanwhile, from {shown.text} to "
                f"{latest.text}; nothing was changed by this command"
            )
    raise CommandError(
        f"{tp.topic}-{tp.partition}: others change it at the same time; try again", EXIT_FAILED
    )


@contextmanager
def _known_all_along(topic: str, partition: int) -> Iterator[None]:
    try:
        yield
    except RemoteResourceNotFoundError as e:
        raise CommandError(f"{topic}-{partition} was removed meanwhile: {e}") from e


def _mark_of(summary: PartitionSummary) -> Shown:
    text = NOT_MARKED
    if summary.marked_at_ms is not None:
        at = datetime.fromtimestamp(summary.marked_at_ms / 1000, UTC)
        text = f"marked for deletion at {at.isoformat(timespec='milliseconds')}"
    return Shown(text, summary.revision)


def _epoch_text(leader_epoch: int | None) -> str:
    return "none" if leader_epoch is None else str(leader_epoch)


def _ask(tp: TopicIdPartition, leader_epoch: int | None, change: str) -> None:
    who = "any broker" if leader_epoch is None else f"any broker of leader epoch {leader_epoch} on"
    what = (
        f"highest broker leader epoch {change}: this lets {who} change what the tier has of "
        f"{tp.topic}-{tp.partition}, one that was overruled too"
    )
    if not sys.stdin.isatty():
        raise CommandError(f"{what}; say --yes to do it")
    if not typer.confirm(f"{what}. Do it?", err=True):
        raise CommandError("nothing was changed")


def _find_partition(
    manager: RemoteLogMetadataManager, topic: str, partition: int
) -> PartitionSummary:
    found = find_topic(manager, topic)
    for summary in found.partitions:
        if summary.topic_id_partition.partition == partition:
            return summary
    numbers = sorted(summary.topic_id_partition.partition for summary in found.partitions)
    raise CommandError(
        f"topic {found.name} has no partition {partition} in the tier; it has {len(numbers)}, "
        f"{numbers[0]} to {numbers[-1]}"
    )


def _tell(tp: TopicIdPartition, outcome: MutationOutcome, text: str, output: Format) -> None:
    if output is Format.JSON:
        print_json(
            {
                "topic_id": uuid_to_text(tp.topic_id),
                "topic": tp.topic,
                "partition": tp.partition,
                "applied": outcome.applied,
                "revision": outcome.revision,
            }
        )
        return
    say(f"{tp.topic}-{tp.partition}: {text} (revision {outcome.revision})")
