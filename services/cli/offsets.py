"""Show where a partition's log starts and ends, and find offsets by time: `sediment offsets`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from services.api.ids import TopicIdPartition
from services.api.offset_queries import (
    NO_OFFSET,
    OffsetAnswer,
    OffsetQueries,
    OffsetQuery,
    PartitionReads,
    SpecialTime,
)
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.cli.command import option
from services.cli.connections import Call, TopicPartition, command_group, with_services
from services.cli.names import find_readable_partition
from services.cli.output import EXIT_FAILED, EXIT_USAGE, Cells, CommandError
from services.views.documents import Json, fields_as_json
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
    time: list[str] | None = option(
        f"Find the first record of this time or later; may be repeated. {TIME_HELP}", metavar="TIME"
    ),
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
) -> None:
    """Show where a partition's log starts and ends, and find times.

    Special values as Kafka's ListOffsets has them: of the log as RLM serves it, tier included.
    No offset (-1 in JSON): nothing is in the tier, or no record has the time.
    """
    wanted = {special.name.lower(): int(special) for special in SpecialTime}
    wanted |= {text: time_ms(text) for text in time or ()}
    with call.rlm_readers() as (given, manager):
        tp = find_readable_partition(given, topic_partition, call)
        offsets = find_offsets(manager, tp, [*wanted.values()], isolation)
    named = zip(wanted, offsets, strict=True)
    call.show_each(named, partial(_as_json, fields_as_json(tp)), "offsets", _as_row)


def _as_json(partition: Json, named: tuple[str, OffsetAnswer]) -> Json:
    of, answer = named
    return partition | {
        "of": of,
        **fields_as_json(answer, "offset", "leader_epoch", "timestamp_ms"),
    }


def _as_row(named: tuple[str, OffsetAnswer]) -> Cells:
    of, answer = named
    epoch = "-" if answer.leader_epoch is None else str(answer.leader_epoch)
    offset = "-" if answer.offset == NO_OFFSET else str(answer.offset)
    at = time_text(answer.timestamp_ms, "milliseconds")
    return {"of": of, "offset": offset, "epoch": epoch, "time of the record": at}


def find_offsets(
    manager: PartitionReads,
    tp: TopicIdPartition,
    times_ms: Sequence[int],
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
) -> list[OffsetAnswer]:
    """Find the offsets of times and special values.

    Raises:
        CommandError: RLM did not answer for one of them.
    """
    queries = tuple(OffsetQuery(tp, time_ms) for time_ms in times_ms)
    answers = manager.list_offsets(OffsetQueries(queries, isolation.level))
    for answer in answers:
        if answer.error is not FetchError.NONE:
            reason = f"{partition_text(tp)}: {answer.error.value}: {answer.error_message}"
            raise CommandError(f"no offset of {reason}", exit_code_of_fetch(answer.error))
    return answers


def exit_code_of_fetch(error: FetchError | None) -> int:
    """Return the exit code for an error of Kafka: whether another offset or name is needed."""
    typed = (FetchError.OFFSET_OUT_OF_RANGE, FetchError.UNKNOWN_TOPIC_ID)
    return EXIT_USAGE if error in typed else EXIT_FAILED


def offset_at(
    manager: PartitionReads, tp: TopicIdPartition, at_ms: int, isolation: Isolation
) -> int:
    """Find the first offset of a time or later; the end of the log if no record has one."""
    at, end = find_offsets(manager, tp, [at_ms, SpecialTime.LATEST], isolation)
    return end.offset if at.offset == NO_OFFSET else at.offset


def time_ms(text: str) -> int:
    """Read a time: ISO 8601, in UTC unless it names another zone, or milliseconds since 1970.

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
