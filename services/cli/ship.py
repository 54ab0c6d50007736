"""Make one pass over log directories, to an RSM and an RLMM: `sediment ship`."""

import signal
import threading
from collections import defaultdict
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Annotated, Self

import typer

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.cli.connections import Call, command_group, with_services
from services.cli.output import (
    EXIT_FAILED,
    EXIT_PARTIAL,
    CommandError,
    bytes_bar,
    print_json,
    print_table,
    say,
)
from services.rlm.copy.report import Progress
from services.rlm.copy.segment import CopyLimits
from services.rlm.copy.ship import PartitionShipReport, ShipOutcome, ShipReport, ShipSettings
from services.rlm.copy.ship import ship as ship_once
from services.rlm.kafka_log.log_dir import SkippedFolder
from services.views.documents import Json, fields_as_json
from services.views.texts import partition_text, size_text
from services.views.tier import problem_text

app = command_group()

_SHOWN_GAPS = 10
_ENDED_BY_SIGNAL = 128
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@app.command()
@with_services("rsm", "rlmm")
def ship(
    call: Call,
    log_dirs: Annotated[
        list[Path],
        typer.Argument(metavar="LOG_DIR", help="Kafka log directories: the broker's log.dirs."),
    ],
    retry_for_s: Annotated[
        float, typer.Option(min=0, help="How long to retry while a service is down, seconds.")
    ] = 60.0,
    copy_lease_ms: Annotated[
        int,
        typer.Option(
            min=1_000,
            max=3_600_000,
            help="Lease of a copy, ms. If this run is killed, the next one waits this long for "
            "the copy that was in progress.",
        ),
    ] = 30_000,
) -> None:
    """Copy every rolled segment that is not in the tier yet, once.

    \b
    Exit codes:
      1         some segments are held back, some were lost before they could be
                copied (recorded as known gaps), or one of several log
                directories cannot be used; each is named
      130, 143  interrupted; run the command again
    """
    cancelled = _cancelled_by_signals()
    with call.rsm_clients() as (storage, _), call.rlmm_client() as metadata:
        limits = CopyLimits(lease_ms=copy_lease_ms)
        settings = ShipSettings(retry_for_s=retry_for_s, limits=limits)
        with ShipBar() as bar:
            report = ship_once(log_dirs, storage, metadata, settings, bar, cancelled=cancelled)
    if call.is_json:
        print_json(_as_json(report))
    else:
        _print(report)
    for partition in report.partitions:
        if partition.leaves_out:
            say(_unsettled_text(partition))
    _say_problems(report)
    raise typer.Exit(_exit_code(report))


class ShipBar(Progress):
    """Show the progress of a pass.

    The bar has no end: the bytes to copy of a partition are known only when its copy begins, and a
    sum over the partitions so far could be mistaken for the whole.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: dict[TopicIdPartition, int] = defaultdict(int)
        self._sent: dict[TopicIdPartition, int] = defaultdict(int)
        self._segments = 0
        self._bar = bytes_bar()
        self._task = self._bar.add_task("shipping", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        with self._lock:
            self._planned[name] = self._sent[name] + size_bytes
            self._show()

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        with self._lock:
            self._sent[name] += size_bytes
            self._show()

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        with self._lock:
            self._segments += 1
            self._show()

    def text(self) -> str:
        """Return the text in front of the bar."""
        found = size_text(sum(self._planned.values()))
        return f"shipped {self._segments} segments; {found} found to ship so far"

    def _show(self) -> None:
        self._bar.update(self._task, completed=sum(self._sent.values()), description=self.text())


def _cancelled_by_signals() -> Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    cancelled = Event()

    def end(number: int, _: object) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        cancelled.set()
        raise CommandError(
            "interrupted; finished segments are in the tier, run the command again for the rest",
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
    """Print each problem; print an unreachable service once, however many partitions wait for
    it.
    """
    problems = _problems(report)
    for problem in problems:
        if problem.kind is not ProblemKind.STORE_UNAVAILABLE:
            say(problem_text(problem))
    away = [problem for problem in problems if problem.kind is ProblemKind.STORE_UNAVAILABLE]
    for message in sorted({problem.message for problem in away}):
        waiting = sum(problem.message == message for problem in away)
        say(f"{message}; {waiting} partition(s) are not finished; run the command again")


def _print(report: ShipReport) -> None:
    columns = ("partition", "shipped", "bytes", "already there", "held back", "not settled")
    print_table("Shipped", columns, map(_as_row, report.partitions))
    copied = sum(partition.copied_segments for partition in report.partitions)
    size = size_text(sum(partition.copied_bytes for partition in report.partitions))
    for partition in report.partitions:
        if partition.known_gaps:
            say(_known_gaps_text(partition))
    for reason, count in report.skipped_folders.items():
        say(f"skipped {count} folder(s) {reason.value}")
    say(f"{report.outcome.value}: {copied} segments, {size} shipped")


def _known_gaps_text(report: PartitionShipReport) -> str:
    gaps = report.known_gaps
    shown = ", ".join(f"{first}-{last}" for first, last in gaps[:_SHOWN_GAPS])
    others = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
    name = partition_text(report.topic_id_partition)
    return f"{name}: known gaps (lost before they were copied): {shown}{others}"


def _unsettled_text(report: PartitionShipReport) -> str:
    return (
        f"{partition_text(report.topic_id_partition)}: {report.unsettled_segments} rolled "
        f"segment(s) not copied: they reach offset {report.settled_before_offset}, and only "
        "lower offsets are known to be settled (no open transaction, and replicated by the "
        "broker's replication-offset-checkpoint). Start the broker of this directory, then "
        "run the command again; if the broker is gone for good, see docs/understand/copying.md"
    )


def _as_row(report: PartitionShipReport) -> tuple[object, ...]:
    return (
        partition_text(report.topic_id_partition),
        report.copied_segments,
        report.copied_bytes,
        report.present_segments,
        report.held_segments,
        report.unsettled_segments,
    )


def _as_json(report: ShipReport) -> Json:
    problems = fields_as_json(report, "log_dir_problems")
    skipped = {each.name: report.skipped_folders.get(each, 0) for each in SkippedFolder}
    partitions = [_partition_as_json(partition) for partition in report.partitions]
    outcome = fields_as_json(report, "outcome")
    return {**outcome, "partitions": partitions, **problems, "skipped_folders": skipped}


def _partition_as_json(report: PartitionShipReport) -> Json:
    described = fields_as_json(report)
    for name in ("recorded", "complete"):
        del described[name]
    gaps = [{"start_offset": first, "end_offset": last} for first, last in report.known_gaps]
    return {**described, "known_gaps": gaps}
