"""Show the work of an RLM, and repair a partition by hand: `sediment partitions`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import typer

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import PartitionDescription, all_descriptions
from services.api.remote_log_metadata_manager import (
    PartitionSummary,
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.retention import earlier_history
from services.cli.command import ListGroup, option, toggle
from services.cli.connections import (
    Call,
    TopicPartition,
    TopicPartitions,
    command_group,
    with_services,
)
from services.cli.names import find_partition, matching, names_of_partition
from services.cli.output import EXIT_FAILED, Cells, CommandError, say
from services.cli.tables import Wide
from services.common.quantities import counted
from services.common.retry import replan
from services.views.documents import fields_as_json
from services.views.texts import partition_text, size_text, sized, time_text
from services.views.tier import problem_text

app = command_group("Show what an RLM ships and serves; repair a partition.", ListGroup)

NO_LEADER_EPOCH = -1
_SHOWN = 20
"""The most problems that are printed."""
NOT_MARKED = "not marked for deletion"


@app.command("list")
@with_services("rlm", limit="--limit")
def list_partitions(call: Call, names: TopicPartitions = None) -> None:
    """Show what an RLM ships and serves.

    Partitions with problems come first, then those with the largest lag; then the live RLMs of the
    cluster, if they announce themselves. `list` may be left out.
    """
    with call.rlm_client() as manager:
        every = all_descriptions(manager)
        chosen = matching(every, names, lambda d: names_of_partition(d.topic_id_partition))
        page = manager.describe_partitions(page_size=1)
    chosen.sort(key=_order)
    call.show_each(chosen, fields_as_json, "partitions", _as_row)
    for rlm in page.rlms:
        listener = f", for consumers of Kafka at {rlm.listener}" if rlm.listener else ""
        say(f"live: the RLM of broker {rlm.broker_id} at {rlm.address}{listener}")
    problems = [*page.log_dir_problems, *(p for d in chosen for p in d.problems)]
    for problem in problems[:_SHOWN]:
        say(problem_text(problem))
    if len(problems) > _SHOWN:
        more = counted(len(problems) - _SHOWN, "problem")
        say(f"and {more} more; `sediment partitions -o json` has them all")


def _not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("give a reason, for readers of the audit trail")
    return text


_REASON: str = option(
    "Why; recorded in the audit trail (`sediment events`).",
    default=...,
    metavar="TEXT",
    callback=_not_blank,
)


@app.command()
@with_services("rlmm")
def undelete(
    call: Call,
    name: TopicPartition,
    reason: str = _REASON,
) -> None:
    """Remove a partition's mark for deletion.

    Possible only until its removal begins. Safe to repeat.
    """
    with _partition(call, name) as (manager, tp):

        def read() -> Shown:
            return _mark_of(_find_summary(manager, tp))

        shown = read()

        def undelete(revision: int) -> MutationOutcome:
            context = MutationContext(reason=reason, expected_revision=revision)
            return manager.undelete_partition(tp, context)

        try:
            outcome = _change_if_as_shown(tp, shown, read, undelete)
        except InvalidStateTransitionError as e:
            raise CommandError(f"{partition_text(tp)} cannot be restored: {e}") from e
    done = f"was {shown.text}; the mark is removed"
    _report(tp, outcome, done if outcome.applied else f"was {NOT_MARKED}", call)


@app.command()
@with_services("rlmm")
def reset_epoch(
    call: Call,
    name: TopicPartition,
    epoch: int = option(
        "The new highest leader epoch; -1 for none.", default=..., min=NO_LEADER_EPOCH
    ),
    reason: str = _REASON,
    yes: bool = toggle("--yes", "Do not ask for confirmation."),
) -> None:
    """Reset a partition's highest broker leader epoch.

    For use after a broker sent a wrong one. Leaders of lower epochs are refused: one that is too
    high locks out the right leader, one that is too low admits leaders that were replaced. Shows
    the current epoch and asks for confirmation on a terminal.
    """
    leader_epoch = None if epoch == NO_LEADER_EPOCH else epoch
    with _partition(call, name) as (manager, tp):

        def highest() -> Shown:
            state = manager.partition_state(tp)
            return Shown(_epoch_text(state.value.highest_broker_leader_epoch), state.revision)

        def reset(revision: int) -> MutationOutcome:
            context = MutationContext(reason=reason, expected_revision=revision)
            return manager.reset_leader_epoch(tp, leader_epoch, context)

        shown = highest()
        change = f"from {shown.text} to {_epoch_text(leader_epoch)}"
        if not yes:
            _confirm(tp, leader_epoch, change)
        outcome = _change_if_as_shown(tp, shown, highest, reset)
    now = change if outcome.applied else f"{shown.text}, as before"
    _report(tp, outcome, f"highest broker leader epoch: {now}", call)


@app.command()
@with_services("rsm", "rlmm", has_output=False)
def drop_history(
    call: Call,
    name: TopicPartition,
    reason: str = _REASON,
    yes: bool = toggle("--yes", "Delete; without it, only show."),
) -> None:
    """Delete what the tier has of a log before it began again.

    For a partition with the problem EARLIER_HISTORY, whose broker lost its
    disk: segments of which all leader epochs are before the log's first.
    """
    # Here, because the list of partitions must not wait for it.
    from services.workflows.deletion import Deleter, begin_deletion, finish_deletion

    with _partition(call, name) as (manager, tp):
        deletions = list(
            earlier_history(all_segments(manager, tp), manager.partition_state(tp).value)
        )
        size_bytes = sum(max(d.segment.segment_size_in_bytes, 0) for d in deletions)
        segments = sized(len(deletions), size_bytes)
        what = f"{partition_text(tp)}: {segments} of an earlier history"
        if not deletions or not yes:
            say(f"{what}; {'pass --yes to delete them' if deletions else 'nothing to delete'}")
            return
        owner = manager.topic_config(tp.topic_id).config.retention_owner
        deleter = Deleter(retention_owner=owner)
        deletions = [replace(d, detail=f"{reason}: {d.detail}"[:256]) for d in deletions]
        now_ms = time.time_ns() // 1_000_000
        outcomes = begin_deletion(manager, tp, deletions, None, None, deleter, now_ms)
        with call.rsm_clients() as (store, _):
            marked = [each.segment for each in outcomes if each.error is None]
            outcomes += finish_deletion(manager, store, marked, deleter, now_ms)
    failed = [each.error for each in outcomes if each.error is not None]
    if failed:
        raise CommandError(f"{what}; {len(failed)} were not deleted: {failed[0]}", EXIT_FAILED)
    say(f"{what}, deleted")


def _as_row(d: PartitionDescription) -> Cells:
    offsets = f"{d.log_start_offset}-{d.log_end_offset - 1}" if d.log_end_offset > 0 else "-"
    copied_through = "-" if d.copied_through_offset < 0 else str(d.copied_through_offset)
    return {
        "partition": partition_text(d.topic_id_partition),
        "local": size_text(d.local_size_bytes),
        "tier": size_text(d.remote_size_bytes),
        "lag": size_text(d.lag_bytes) if d.lag_segments else "-",
        "blocked": _blocked(d) or "-",
        Wide("offsets"): offsets,
        Wide("local log start"): str(d.local_log_start_offset),
        Wide("copied through"): copied_through,
        Wide("local segments"): d.local_segments,
        Wide("tier segments"): d.remote_segments,
        Wide("lag segments"): d.lag_segments,
    }


def _blocked(d: PartitionDescription) -> int:
    return max((each.blocked_segments for each in d.problems), default=0)


def _order(d: PartitionDescription) -> tuple[object, ...]:
    """Return what puts partitions with problems first, then those that lag most."""
    tp = d.topic_id_partition
    return not d.problems, -_blocked(d), -d.lag_bytes, tp.topic, tp.partition


@dataclass(frozen=True)
class Shown:
    """A value on which an administrator decides, and the revision at which it was read."""

    text: str
    revision: int


def _change_if_as_shown(
    tp: TopicIdPartition,
    shown: Shown,
    read: Callable[[], Shown],
    change: Callable[[int], MutationOutcome],
) -> MutationOutcome:
    """Change the partition at the shown revision, or at a later one with the same value.

    Copies and reports raise the revision meanwhile.
    """

    def read_the_same() -> Shown:
        latest = read()
        if latest.text != shown.text:
            raise CommandError(
                f"{partition_text(tp)} changed meanwhile from {shown.text} to {latest.text}; "
                "this command changed nothing"
            )
        return latest

    try:
        return replan(lambda value: change(value.revision), read_the_same, first=shown)
    except ConcurrentUpdateError as e:
        raise CommandError(
            f"{partition_text(tp)} keeps changing; run the command again", EXIT_FAILED
        ) from e


@contextmanager
def _partition(
    call: Call, name: str
) -> Iterator[tuple[RemoteLogMetadataManager, TopicIdPartition]]:
    """Connect to RLMM and find a partition; report it as such if it is removed meanwhile."""
    try:
        with call.rlmm_client() as manager:
            yield manager, find_partition(manager, name)
    except RemoteResourceNotFoundError as e:
        raise CommandError(f"{name} is not in the tier, or was removed meanwhile: {e}") from e


def _mark_of(summary: PartitionSummary) -> Shown:
    text = NOT_MARKED
    if summary.marked_at_ms is not None:
        text = f"marked for deletion at {time_text(summary.marked_at_ms)}"
    return Shown(text, summary.revision)


def _epoch_text(leader_epoch: int | None) -> str:
    return "none" if leader_epoch is None else str(leader_epoch)


def _confirm(tp: TopicIdPartition, leader_epoch: int | None, change: str) -> None:
    epochs = (
        "any leader epoch" if leader_epoch is None else f"leader epoch {leader_epoch} or higher"
    )
    what = (
        f"changing the highest broker leader epoch {change} lets every broker with {epochs} change "
        f"the tiered data of {partition_text(tp)}, also a leader that was replaced"
    )
    if not sys.stdin.isatty():
        raise CommandError(f"{what}; pass --yes to confirm")
    if not typer.confirm(f"{what}. Continue?", err=True):
        raise CommandError("nothing was changed")


def _find_summary(manager: RemoteLogMetadataManager, tp: TopicIdPartition) -> PartitionSummary:
    for summary in all_partitions(manager, topic=tp.topic):
        if summary.topic_id_partition == tp:
            return summary
    raise RemoteResourceNotFoundError(f"RLMM does not know {tp}")


def _report(tp: TopicIdPartition, outcome: MutationOutcome, text: str, call: Call) -> None:
    call.show(
        fields_as_json(tp) | fields_as_json(outcome, "applied", "revision"),
        lines=[f"{partition_text(tp)}: {text} (revision {outcome.revision})"],
    )
