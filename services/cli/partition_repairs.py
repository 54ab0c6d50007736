"""`sediment partitions undelete` and `reset-epoch`: what puts a partition right by hand."""

import sys
from pathlib import Path

import typer

from services.api.calls import MutationContext, MutationOutcome
from services.api.errors import InvalidStateTransitionError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.cli.connections import connected_rlmm
from services.cli.failures import CommandError
from services.cli.output import Format, print_json, say
from services.cli.topics import find_topic

NO_LEADER_EPOCH = -1


def undelete(
    topic: str,
    partition: int,
    reason: str,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    """Take the mark for deletion of one partition back."""
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = _find_partition(manager, topic, partition)
        try:
            outcome = manager.undelete_partition(tp, MutationContext(reason=reason))
        except InvalidStateTransitionError as e:
            raise CommandError(f"{tp.topic}-{partition} cannot be brought back: {e}") from e
    done = "it is no longer marked for deletion"
    _tell(tp, outcome, done if outcome.applied else "it was not marked for deletion", output)


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
    with connected_rlmm(rlmm, data_dir) as manager:
        tp = _find_partition(manager, topic, partition)
        leader_epoch = None if epoch == NO_LEADER_EPOCH else epoch
        if not yes:
            _ask(tp, leader_epoch)
        context = MutationContext(reason=reason)
        outcome = manager.reset_leader_epoch(tp, leader_epoch, context)
    told = "none is known" if leader_epoch is None else f"it is {leader_epoch}"
    now = f"highest broker leader epoch: {told}{'' if outcome.applied else ', as it was before'}"
    _tell(tp, outcome, now, output)


def _ask(tp: TopicIdPartition, leader_epoch: int | None) -> None:
    who = "any broker" if leader_epoch is None else f"any broker of leader epoch {leader_epoch} on"
    what = (
        f"this lets {who} change what the tier has of {tp.topic}-{tp.partition}, one that was "
        "overruled too"
    )
    if not sys.stdin.isatty():
        raise CommandError(f"{what}; say --yes to do it")
    if not typer.confirm(f"{what}. Do it?", err=True):
        raise CommandError("nothing was changed")


def _find_partition(
    manager: RemoteLogMetadataManager, topic: str, partition: int
) -> TopicIdPartition:
    found = find_topic(manager, topic)
    known = [summary.topic_id_partition for summary in found.partitions]
    for tp in known:
        if tp.partition == partition:
            return tp
    numbers = sorted(tp.partition for tp in known)
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
