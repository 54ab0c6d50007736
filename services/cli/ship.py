"""`sediment ship`: one pass over log directories, to the services' RSM and RLMM."""

import signal
from pathlib import Path
from threading import Event

from services.api.ids import uuid_to_text
from services.api.remote_log_manager import Problem, ProblemKind
from services.cli.connections import connected_rlmm, connected_rsm
from services.cli.output import (
    EXIT_FAILED,
    EXIT_PARTIAL,
    CommandError,
    Format,
    ShipBar,
    print_json,
    print_table,
    say,
    size_text,
)
from services.cli.partitions import problem_as_json, problem_text
from services.rlm.copy.segment import CopyLimits
from services.rlm.copy.ship import PartitionShipReport, ShipOutcome, ShipReport, ShipSettings, ship

_TOLD_GAPS = 10
_ENDED_BY_SIGNAL = 128
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(
    log_dirs: list[Path],
    rsm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    retry_for_s: float,
    copy_lease_ms: int,
    output: Format,
) -> int:
    """Answer the exit code that the report deserves.

    Raises:
        LogDirError: no log directory can be used.
        CommandError: a signal ended it.
    """
    cancelled = _cancelled_by_signals()
    with connected_rsm(rsm, data_dir) as storage, connected_rlmm(rlmm, data_dir) as metadata:
        limits = CopyLimits(lease_ms=copy_lease_ms)
        settings = ShipSettings(retry_for_s=retry_for_s, limits=limits)
        with ShipBar() as bar:
            report = ship(log_dirs, storage, metadata, settings, bar, cancelled=cancelled)
    if output is Format.JSON:
        print_json(_as_json(report))
    else:
        _print(report)
    for partition in report.partitions:
        if partition.leaves_out:
            say(_unsettled_text(partition))
    _say_problems(report)
    return _exit_code(report)


def _cancelled_by_signals() -> Event:
    """Set by SIGTERM and SIGINT, which raise CommandError too; one more ends us at once."""
    cancelled = Event()

    def end(number: int, _: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        cancelled.set()
        raise CommandError(
            "interrupted; what was finished is in the tier: run it again for the rest",
            _ENDED_BY_SIGNAL + number,
        )

    for each in _SIGNALS:
        signal.signal(each, end)
    return cancelled


def _exit_code(report: ShipReport) -> int:
    if any(problem.kind is ProblemKind.STORE_UNAVAILABLE for problem in _problems(report)):
        return EXIT_FAILED
    return 0 if report.outcome is ShipOutcome.DONE else EXIT_PARTIAL


def _problems(report: ShipReport) -> list[Problem]:
    of_partitions = [problem for partition in report.partitions for problem in partition.problems]
    return [*report.log_dir_problems, *of_partitions]


def _say_problems(report: ShipReport) -> None:
    """Each problem; a service that is away is one, however many partitions had to wait for it."""
    problems = _problems(report)
    for problem in problems:
        if problem.kind is not ProblemKind.STORE_UNAVAILABLE:
            say(problem_text(problem))
    away = [problem for problem in problems if problem.kind is ProblemKind.STORE_UNAVAILABLE]
    for message in sorted({problem.message for problem in away}):
        waiting = sum(problem.message == message for problem in away)
        say(f"{message}; {waiting} partition(s) not finished: run it again")


def _print(report: ShipReport) -> None:
    columns = ("partition", "shipped now", "bytes", "there before", "held back", "not settled")
    print_table("Shipped", columns, map(_as_row, report.partitions))
    copied = sum(partition.copied_segments for partition in report.partitions)
    size = size_text(sum(partition.copied_bytes for partition in report.partitions))
    for partition in report.partitions:
        if partition.known_gaps:
            say(_known_gaps_text(partition))
    say(f"{report.outcome.value}: {copied} segments, {size} shipped")


def _known_gaps_text(report: PartitionShipReport) -> str:
    tp, gaps = report.topic_id_partition, report.known_gaps
    told = ", ".join(f"{first}-{last}" for first, last in gaps[:_TOLD_GAPS])
    others = f" and {len(gaps) - _TOLD_GAPS} more" if len(gaps) > _TOLD_GAPS else ""
    return f"{tp.topic}-{tp.partition}: known gaps, lost before their copy: {told}{others}"


def _unsettled_text(report: PartitionShipReport) -> str:
    tp = report.topic_id_partition
    return (
        f"{tp.topic}-{tp.partition}: {report.unsettled_segments} rolled segment(s) left out: they "
        f"reach offset {report.settled_before_offset}, below which the log is known to be settled "
        "(no open transaction, and all in-sync replicas have it by the broker's "
        "replication-offset-checkpoint), and no broker runs on the directory that would settle "
        "more. Start it and run this again; where it is gone for good, see docs/copying.md"
    )


def _as_row(report: PartitionShipReport) -> tuple[object, ...]:
    tp = report.topic_id_partition
    return (
        f"{tp.topic}-{tp.partition}",
        report.copied_segments,
        report.copied_bytes,
        report.present_segments,
        report.held_segments,
        report.unsettled_segments,
    )


def _as_json(report: ShipReport) -> dict[str, object]:
    return {
        "outcome": report.outcome.value,
        "partitions": [_partition_as_json(partition) for partition in report.partitions],
        "log_dir_problems": [problem_as_json(problem) for problem in report.log_dir_problems],
    }


def _partition_as_json(report: PartitionShipReport) -> dict[str, object]:
    tp = report.topic_id_partition
    return {
        "topic_id": uuid_to_text(tp.topic_id),
        "topic": tp.topic,
        "partition": tp.partition,
        "copied_segments": report.copied_segments,
        "copied_bytes": report.copied_bytes,
        "present_segments": report.present_segments,
        "present_bytes": report.present_bytes,
        "held_segments": report.held_segments,
        "unsettled_segments": report.unsettled_segments,
        "settled_before_offset": report.settled_before_offset,
        "will_settle": report.will_settle,
        "cleaned_attempts": report.cleaned_attempts,
        "known_gaps": [
            {"start_offset": first, "end_offset": last} for first, last in report.known_gaps
        ],
        "problems": [problem_as_json(problem) for problem in report.problems],
    }
