"""Show where a partition's log starts and ends, and find offsets by time: `sediment offsets`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from services.api.ids import TopicIdPartition
from services.api.offset_queries import (
    NO_OFFSET,
    FoundOffset,
    OffsetQueries,
    OffsetQuery,
    OffsetService,
    SpecialTime,
)
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.cli.connections import (
    Call,
    TopicPartition,
    command_group,
    find_readable_partition,
    with_services,
)
from services.cli.output import EXIT_FAILED, CommandError
from services.views.documents import fields_as_json
from services.views.texts import partition_text, time_text

app = command_group()


class Isolation(StrEnum):
    """The records of transactions to print, by the names of Kafka's consumer."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> IsolationLevel:
        return IsolationLevel[self.name]


IsolationOption = Annotated[
    Isolation,
    typer.Option(help="read_committed: without records of aborted and of open transactions."),
]

TIME_HELP = "Like 2026-01-31T12:00:00Z, without Z in UTC too, or milliseconds since 1970."


@app.command()
@with_services("rlmm", "rlm")
def offsets(
    call: Call,
    topic_partition: TopicPartition,
    time: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TIME",
            help=f"Find the first record of this time or later; may be repeated. {TIME_HELP}",
        ),
    ] = None,
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
) -> None:
    """Show where a partition's log starts and ends, and find times.

    Special values as Kafka's ListOffsets has them: of the log as RLM serves it, tier included.
    -1 is no offset: nothing is in the tier, or no record has the time.
    """
    asked = [(special.name.lower(), int(special)) for special in SpecialTime]
    asked += [(text, time_ms(text)) for text in time or ()]
    with call.rlm_client() as manager:
        tp = find_readable_partition(manager, topic_partition, call)
        found = find_offsets(manager, tp, [each for _, each in asked], isolation)
    call.show_each(
        [(name, answer) for (name, _), answer in zip(asked, found, strict=True)],
        lambda named: {
            "of": named[0],
            **fields_as_json(named[1], "offset", "leader_epoch", "timestamp_ms"),
        },
        partition_text(tp),
        ("of", "offset", "leader epoch", "time of the record"),
        lambda named: _as_row(*named),
    )


def _as_row(name: str, answer: FoundOffset) -> tuple[object, ...]:
    epoch = "-" if answer.leader_epoch is None else str(answer.leader_epoch)
    return name, answer.offset, epoch, time_text(answer.timestamp_ms)


def find_offsets(
    manager: OffsetService,
    tp: TopicIdPartition,
    times_ms: Sequence[int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[FoundOffset]:
    """Find the offsets of times and special values.

    Raises:
        CommandError: RLM did not answer for one of them.
    """
    queries = tuple(OffsetQuery(tp, time_ms) for time_ms in times_ms)
    found = manager.list_offsets(OffsetQueries(queries, isolation.level))
    for answer in found:
        if answer.error is not FetchError.NONE:
            reason = f"{partition_text(tp)}: {answer.error.value}: {answer.error_message}"
            raise CommandError(f"no offset of {reason}", EXIT_FAILED)
    return found


def offset_at(
    manager: OffsetService, tp: TopicIdPartition, at_ms: int, isolation: Isolation
) -> int:
    """Find the first offset of a time or later; the end of the log if no record has one."""
    at, end = find_offsets(manager, tp, [at_ms, SpecialTime.LATEST], isolation)
    return end.offset if at.offset == NO_OFFSET else at.offset


def time_ms(text: str) -> int:
    """Read a time: ISO 8601, in UTC unless it says otherwise, or milliseconds since 1970.

    Raises:
        CommandError: it is neither, or before 1970.
    """
    try:
        if text.isascii() and text.isdecimal():
            return int(text)
        at = datetime.fromisoformat(text)
    except ValueError as e:
        raise CommandError(
            f"{text!r} is no time; write it {TIME_HELP[0].lower()}{TIME_HELP[1:]}"
        ) from e
    at_ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    if at_ms < 0:
        raise CommandError(f"{text!r} is before 1970, which no record of Kafka's is")
    return at_ms
