"""`sediment partitions`: what an RLM ships and serves, and what puts a partition right by hand."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import (
    ConcurrentUpdateError,
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_manager import PartitionDescription, Problem, all_descriptions
from services.api.remote_log_metadata_manager import PartitionSummary, RemoteLogMetadataManager
from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlm,
    Rlmm,
    Topic,
    connected_rlm,
    connected_rlmm,
)
from services.cli.output import (
    EXIT_FAILED,
    CommandError,
    Format,
    print_json,
    print_table,
    say,
    size_text,
)
from services.cli.topics import find_topic


def run(rlm: str | None, data_dir: Path | None, output: Format) -> None:
    with connected_rlm(rlm, data_dir) as manager:
        descriptions = list(all_descriptions(manager))
        log_dir_problems = manager.describe_partitions(page_size=1).log_dir_problems
    if output is Format.JSON:
        for description in descriptions:
            print_json(as_json(description))
    else:
        print_descriptions(descriptions)
    for problem in [*log_dir_problems, *(p for d in descriptions for p in d.problems)]:
        say(problem_text(problem))


def print_descriptions(descriptions: list[PartitionDescription]) -> None:
    columns = (
        "partition",
        "readable offsets",
        "local from",
        "copied through",
        "local",
        "in the tier",
        "to ship",
    )
    print_table("Partitions", columns, map(_as_row, descriptions))


def _as_row(d: PartitionDescription) -> tuple[object, ...]:
    tp = d.topic_id_partition
    return (
        f"{tp.topic}-{tp.partition}",
        f"{d.log_start_offset}-{d.log_end_offset - 1}" if d.log_end_offset > 0 else "none",
        d.local_log_start_offset,
        d.copied_through_offset,
        f"{d.local_segments} ({size_text(d.local_size_bytes)})",
        f"{d.remote_segments} ({size_text(d.remote_size_bytes)})",
        f"{d.pending_segments} ({size_text(d.pending_size_bytes)})",
    )


def as_json(description: PartitionDescription) -> dict[str, object]:
    tp = description.topic_id_partition
    return {
        "topic_id": uuid_to_text(tp.topic_id),
        "topic": tp.topic,
        "partition": tp.partition,
        **{
            name: value
            for name, value in asdict(description).items()
            if name not in ("topic_id_partition", "role", "problems")
        },
        "role": description.role and description.role.value,
        "problems": [problem_as_json(problem) for problem in description.problems],
    }


def problem_as_json(problem: Problem) -> dict[str, object]:
    return {**asdict(problem), "kind": problem.kind.value}


def problem_text(problem: Problem) -> str:
    at = "" if problem.offset is None else f" at offset {problem.offset}"
    held = f"; holds back {problem.held_segments} segment(s)" if problem.held_segments else ""
    return f"{problem.kind.value}: {problem.path}{at}: {problem.message}{held}"


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


partitions = typer.Typer(invoke_without_command=True)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("say why, for who reads the audit trail")
    return text


_Number = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Its number.")]

_Reason = Annotated[
    str,
    typer.Option(
        metavar="TEXT",
        callback=_not_blank,
        help="Why; goes into the audit trail, `sediment events`.",
    ),
]


@partitions.callback()
def show(
    context: typer.Context,
    rlm: Rlm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show what an RLM ships and serves: local, remote, held back. Or put a partition right."""
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    pass

    run(rlm, data_dir, output)


def _refuse_options(context: typer.Context) -> None:
    """They are those of the list: the command behind them would not see them."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"say it behind {context.invoked_subcommand}, where that command has it",
                context,
                param_hint=option.opts[0],
            )


@partitions.command("undelete")
def undelete_command(
    topic: Topic,
    partition: _Number,
    reason: _Reason,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Bring back a partition that is marked for deletion.

    Only as long as its removal has not begun. Safe to repeat. Exit code 0: it is not being deleted
    (any more). 2: not known, removed or marked anew meanwhile, or its segments are going already;
    nothing was changed. 3: RLMM could not be reached.
    """
    pass

    undelete(topic, partition, reason, rlmm, data_dir, output)


@partitions.command("reset-epoch")
def reset_epoch_command(
    topic: Topic,
    partition: _Number,
    epoch: Annotated[int, typer.Option(min=-1, help="The highest from now on; -1: none is known.")],
    reason: _Reason,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it, unasked.")] = False,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Set a partition's highest broker leader epoch, after a broker gave a wrong one.

    Leaders of lower epochs are refused; a wrong one that is too high locks the right leader out,
    and a reset that is too low lets overruled ones in. Shows the present one and asks first, on a
    terminal. Exit code 0: it is set. 2: not known, not agreed to, or another one by then; nothing
    was changed. 3: RLMM could not be reached.
    """
    pass

    reset_epoch(topic, partition, epoch, reason, yes, rlmm, data_dir, output)
