"""List, set and end what keeps offsets from deletion: `sediment holds`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated
from uuid import uuid4

import typer

from services.api.calls import MutationContext
from services.api.holds import Hold, HoldKind
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_holds,
    all_partitions,
    all_segments,
)
from services.api.retention import COPIES, NO_TIMESTAMP
from services.api.segments import RemoteLogSegmentMetadata
from services.cli.command import ListGroup, argument, option, quantity, toggle
from services.cli.connections import Call, command_group, completed, with_services
from services.cli.names import find_partition, find_topic
from services.cli.offsets import TIME_HELP, time_ms
from services.cli.output import Cells, CommandError
from services.cli.tables import Wide
from services.common.quantities import DURATION_MS
from services.views.documents import Json, fields_as_json
from services.views.texts import time_text

app = command_group("Keep offsets from deletion, and list what is kept.", ListGroup)

_SCOPE_HELP = (
    "A topic or a partition: orders, orders-0; TOPIC_ID:orders if several have had the name."
)
_Scope = Annotated[
    str | None,
    typer.Argument(metavar="SCOPE", autocompletion=completed("TOPIC-PARTITION"), help=_SCOPE_HELP),
]
_All = Annotated[bool, typer.Option("--all", help="All topics, instead of SCOPE.")]


@app.command("list")
@with_services("rlmm", limit="--limit")
def list_holds(call: Call, scope: _Scope = None) -> None:
    """List what keeps offsets from deletion.

    Of a topic or a partition also what is over more than that. `list` may be left out.
    """
    with call.rlmm_client() as manager:
        if scope is None:
            listed = list(all_holds(manager))
        else:
            listed = [each for each in all_holds(manager) if _overlap(each, _of(manager, scope))]
    listed.sort(key=lambda each: (each.scope, each.name))
    call.show_each(listed, _as_json, "holds", _as_row)


@app.command("set")
@with_services("rlmm")
def set_hold(
    call: Call,
    reason: str = option("Why; who ends it will ask.", default=..., metavar="TEXT"),
    scope: _Scope = None,
    every_topic: _All = False,
    name: str = option("To set the same hold again, or to end it. Default: a new one.", default=""),
    legal: bool = toggle("--legal", "Only the role counsel may end it; it only grows."),
    first_offset: int | None = option("The first offset. Default: 0.", "--from", min=0),
    last_offset: int | None = option("The last offset. Default: no end.", "--to", min=0),
    from_time: str | None = option(
        "Instead of --from: from the first segment on with a record of this time or "
        f"later. {TIME_HELP}",
        metavar="TIME",
    ),
    to_time: str | None = option(
        "Instead of --to: up to the last segment that may have a record up to this time.",
        metavar="TIME",
    ),
    until: str | None = option("It ends then. Default: when it is ended.", metavar="TIME"),
    lease_ms: int | None = quantity(
        "--for", DURATION_MS, "It ends so long from now on.", None, min=1
    ),
) -> None:
    """Keep offsets of a topic, a partition or all topics from deletion.

    Once it has returned, nothing of them begins to be deleted, by whichever service; what has begun
    ends. Offsets need not exist yet. Times are read from the segments now, once, and stored as
    offsets of whole segments.
    """
    if (first_offset is not None and from_time) or (last_offset is not None and to_time):
        raise CommandError("give an offset or a time, not both")
    with call.rlmm_client() as manager:
        of = _of(manager, _one_scope(scope, every_topic))
        kind = HoldKind.LEGAL if legal else HoldKind.OPERATOR
        hold = replace(
            of,
            name=name or f"hold-{uuid4().hex[:8]}",
            kind=kind,
            first_offset=first_offset or 0,
            last_offset=last_offset,
            reason=reason,
            until_ms=None if until is None else time_ms(until),
        )
        wanted = [hold]
        if from_time or to_time:
            times = [None if text is None else time_ms(text) for text in (from_time, to_time)]
            wanted = list(_resolved(manager, hold, *times))
        held = [manager.set_hold(each, lease_ms) for each in wanted]
    call.show_each(held, _as_json, "holds", _as_row)


@app.command("end")
@with_services("rlmm")
def end_hold(
    call: Call,
    words: list[str] = argument(f"{_SCOPE_HELP} Then the hold's name.", metavar="[SCOPE] NAME"),
    every_topic: _All = False,
    legal: bool = toggle("--legal", "Confirm that it is a legal hold."),
    reason: str = option("Why; RLMM logs it.", default="", metavar="TEXT"),
) -> None:
    """End a hold: retention may delete what it kept.

    Of a topic also those of this name that are of its partitions. An export that still runs takes a
    new lease.
    """
    *scopes, name = words
    if len(scopes) > 1:
        raise CommandError(f"too many arguments: {' '.join(words)}; give a scope and a name")
    with call.rlmm_client() as manager:
        scope = _one_scope(scopes[0] if scopes else None, every_topic)
        of = _of(manager, scope)
        named = [each for each in all_holds(manager) if each.name == name and _overlap(each, of)]
        chosen = [each for each in named if _is_within(each, of)]
        if not chosen:
            wider = "".join(f"; `{each.how_to_end}` ends that of {each.scope}" for each in named)
            raise CommandError(f"{scope or 'all topics'} has no hold {name}{wider}")
        for each in chosen:
            is_freeze = each.kind is HoldKind.REBUILD and each.topic_id is None
            if is_freeze or legal is not (each.kind is HoldKind.LEGAL):
                raise CommandError(f"{each}; `{each.how_to_end}` ends it")
        for each in chosen:
            manager.end_hold(each, MutationContext(reason=reason))
    call.show_each(chosen, _as_json, "holds", _as_row)


def _one_scope(scope: str | None, every_topic: bool) -> str:
    """Return the scope; "" for all topics."""
    if (scope is None) is not every_topic:
        raise CommandError("name a topic or a partition, or pass --all for all topics")
    return scope or ""


def _of(manager: RemoteLogMetadataManager, scope: str) -> Hold:
    """Return a hold of a scope, to be completed; "" is all topics."""
    of_all = Hold("-", HoldKind.OPERATOR)
    if not scope:
        return of_all
    try:
        topic = find_topic(manager, scope)
        return replace(of_all, topic_id=topic.topic_id, topic=topic.name)
    except CommandError as no_topic:
        try:
            tp = find_partition(manager, scope)
        except CommandError:
            raise no_topic from None
        return replace(of_all, topic_id=tp.topic_id, topic=tp.topic, partition=tp.partition)


def _overlap(hold: Hold, of: Hold) -> bool:
    """Return whether two scopes have a partition in common."""
    topics, partitions = {hold.topic_id, of.topic_id}, {hold.partition, of.partition}
    return (None in topics or len(topics) == 1) and (None in partitions or len(partitions) == 1)


def _is_within(hold: Hold, of: Hold) -> bool:
    """Return whether a hold is of the scope, or of a partition of that topic."""
    return hold.topic_id == of.topic_id and of.partition in (None, hold.partition)


def _resolved(
    manager: RemoteLogMetadataManager, hold: Hold, from_ms: int | None, to_ms: int | None
) -> Iterable[Hold]:
    """Yield a hold for each partition of the scope, with the offsets of the times."""
    if hold.topic_id is None:
        raise CommandError("times are resolved by partition: name a topic or a partition")
    if from_ms is not None and to_ms is not None and to_ms < from_ms:
        raise CommandError("--to-time is before --from-time")
    for summary in all_partitions(manager, topic=hold.topic):
        tp = summary.topic_id_partition
        if hold.covers(tp.topic_id, tp.partition):
            segments = list(all_segments(manager, tp, states=COPIES))
            first, last = offsets_between(segments, from_ms, to_ms)
            yield replace(
                hold,
                partition=tp.partition,
                first_offset=hold.first_offset if from_ms is None else first,
                last_offset=hold.last_offset if to_ms is None else last,
            )


def offsets_between(
    segments: Sequence[RemoteLogSegmentMetadata], from_ms: int | None, to_ms: int | None
) -> tuple[int, int | None]:
    """Return the first and last offset of the segments that may have records of these times.

    A segment has the time of its newest record alone, so the last one is the first that is newer
    than `to_ms`. None: no segment is; what comes may have such records.
    """
    start, end = from_ms or 0, to_ms
    newest = [(each.max_timestamp_ms, each) for each in segments]
    reach = [each for at, each in newest if at >= start or at == NO_TIMESTAMP]
    after_all = max((each.end_offset + 1 for each in segments), default=0)
    first = min((each.start_offset for each in reach), default=after_all)
    if end is None:
        return first, None
    within = [each.end_offset for at, each in newest if start <= at <= end or at == NO_TIMESTAMP]
    through = max(within, default=first - 1)
    later = (each.end_offset for at, each in newest if at > end and each.end_offset > through)
    return first, min(later, default=None)


def _as_json(hold: Hold) -> Json:
    return fields_as_json(hold)


def _as_row(hold: Hold) -> Cells:
    return {
        "hold": hold.name,
        "kind": hold.kind.value.lower(),
        "of": "all topics" if hold.topic_id is None else hold.scope,
        "offsets": hold.offsets.removeprefix("offsets "),
        "until": "-" if hold.until_ms is None else time_text(hold.until_ms),
        "reason": hold.reason or "-",
        Wide("set by"): hold.actor,
        Wide("set at"): time_text(hold.set_at_ms),
    }
