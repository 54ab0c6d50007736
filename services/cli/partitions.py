"""Show the work of an RLM, and repair a partition by hand: `sediment partitions`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

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
    all_segments,
)
from services.api.retention import earlier_history
from services.cli.connections import Call, Topic, with_services
from services.cli.output import EXIT_FAILED, CommandError, print_json, say
from services.cli.topics import find_topic
from services.common.retry import replan
from services.views.documents import fields_as_json
from services.views.texts import partition_text, size_text, time_text
from services.views.tier import problem_text
from services.workflows.deletion import Deleter, begin_deletion, finish_deletion

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)

NO_LEADER_EPOCH = -1
NOT_MARKED = "not marked for deletion"


@app.callback()
@with_services("rlm")
def partitions(call: Call, context: typer.Context) -> None:
    """Show what an RLM ships and serves; repair a partition."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    with call.rlm_client() as manager:
        descriptions = list(all_descriptions(manager))
        log_dir_problems = manager.describe_partitions(page_size=1).log_dir_problems
    columns = (
        "partition",
        "readable offsets",
        "local from",
        "copied through",
        "local",
        "in the tier",
        "to ship",
    )
    call.show_each(descriptions, fields_as_json, "Partitions", columns, _as_row)
    for problem in [*log_dir_problems, *(p for d in descriptions for p in d.problems)]:
        say(problem_text(problem))


def _refuse_options(context: typer.Context) -> None:
    """Refuse options in front of a subcommand: they belong to the list, and would be ignored."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"put it after {context.invoked_subcommand}, if that command has it",
                context,
                param_hint=option.opts[0],
            )


def _not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("give a reason, for readers of the audit trail")
    return text


_Number = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="The partition's number.")]

_Reason = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        callback=_not_blank,
        help="Why; recorded in the audit trail (`sediment events`).",
    ),
]


@app.command()
@with_services("rlmm")
def undelete(
    call: Call,
    topic: Topic,
    partition: _Number,
    reason: _Reason,
) -> None:
    """Take back a partition's mark for deletion.

    Possible only until its removal begins. Safe to repeat.
    """
    with call.rlmm_client() as manager, _known_all_along(topic, partition):
        found = _find_partition(manager, topic, partition)
        tp = found.topic_id_partition

        def read() -> Shown:
            return _mark_of(_find_partition(manager, topic, partition))

        def take_back(revision: int) -> MutationOutcome:
            context = MutationContext(reason=reason, expected_revision=revision)
            return manager.undelete_partition(tp, context)

        shown = _mark_of(found)
        try:
            outcome = _change_what_is_shown(tp, shown, read, take_back)
        except InvalidStateTransitionError as e:
            raise CommandError(f"{tp.topic}-{partition} cannot be restored: {e}") from e
    done = f"was {shown.text}; the mark is removed"
    _report(tp, outcome, done if outcome.applied else f"was {NOT_MARKED}", call)


@app.command()
@with_services("rlmm")
def reset_epoch(
    call: Call,
    topic: Topic,
    partition: _Number,
    epoch: Annotated[
        int,
        typer.Option(min=NO_LEADER_EPOCH, help="The new highest leader epoch; -1 for none."),
    ],
    reason: _Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Reset a partition's highest broker leader epoch.

    For use after a broker sent a wrong one. Leaders of lower epochs are refused: one that is too
    high locks out the right leader, one that is too low admits leaders that were replaced. Shows
    the current epoch and asks for confirmation on a terminal.
    """
    leader_epoch = None if epoch == NO_LEADER_EPOCH else epoch
    with call.rlmm_client() as manager, _known_all_along(topic, partition):
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
            _confirm(tp, leader_epoch, change)
        outcome = _change_what_is_shown(tp, shown, highest, reset)
    now = change if outcome.applied else f"{shown.text}, as before"
    _report(tp, outcome, f"highest broker leader epoch: {now}", call)


@app.command()
@with_services("rlmm")
def release_export(
    call: Call,
    topic: Topic,
    partition: _Number,
    name: Annotated[
        str, typer.Argument(metavar="EXPORT", help="Its name, as `sediment explain` shows it.")
    ],
) -> None:
    """End the lease of an export: retention may pass its position.

    For an export that does not run any more; a running one takes a new lease. Safe to repeat.
    """
    with call.rlmm_client() as manager, _known_all_along(topic, partition):
        tp = _find_partition(manager, topic, partition).topic_id_partition
        state = manager.partition_state(tp)
        kept = next((e for e in state.value.export_positions if e.name == name), None)
        manager.set_export_position(tp, name, 0, 0)
    was = f"the lease has ended: {kept}" if kept else f"export {name} keeps nothing, as before"
    _report(tp, MutationOutcome(kept is not None, state.revision), was, call)


@app.command()
@with_services("rsm", "rlmm", has_output=False)
def drop_history(
    call: Call,
    topic: Topic,
    partition: _Number,
    reason: _Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it, only show.")] = False,
) -> None:
    """Delete what the tier has of a log before it began again.

    For a partition with the problem EARLIER_HISTORY, whose broker lost its
    disk: segments of which all leader epochs are before the log's first.
    """
    with call.rlmm_client() as manager, _known_all_along(topic, partition):
        tp = _find_partition(manager, topic, partition).topic_id_partition
        deletions = list(
            earlier_history(all_segments(manager, tp), manager.partition_state(tp).value)
        )
        size = size_text(sum(max(d.segment.segment_size_in_bytes, 0) for d in deletions))
        what = f"{tp.topic}-{partition}: {len(deletions)} segments of an earlier history, {size}"
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


def _as_row(d: PartitionDescription) -> tuple[object, ...]:
    return (
        partition_text(d.topic_id_partition),
        f"{d.log_start_offset}-{d.log_end_offset - 1}" if d.log_end_offset > 0 else "none",
        d.local_log_start_offset,
        d.copied_through_offset,
        f"{d.local_segments} ({size_text(d.local_size_bytes)})",
        f"{d.remote_segments} ({size_text(d.remote_size_bytes)})",
        f"{d.pending_segments} ({size_text(d.pending_size_bytes)})",
    )


@dataclass(frozen=True)
class Shown:
    """A value on which an administrator decides, and the revision at which it was read."""

    text: str
    revision: int


def _change_what_is_shown(
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
def _known_all_along(topic: str, partition: int) -> Iterator[None]:
    try:
        yield
    except RemoteResourceNotFoundError as e:
        raise CommandError(f"{topic}-{partition} was removed meanwhile: {e}") from e


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


def _report(tp: TopicIdPartition, outcome: MutationOutcome, text: str, call: Call) -> None:
    if call.is_json:
        print_json(fields_as_json(tp) | fields_as_json(outcome, "applied", "revision"))
    else:
        say(f"{partition_text(tp)}: {text} (revision {outcome.revision})")
