"""Make one pass over log directories, to an RSM and an RLMM: `sediment ship`."""

import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import typer

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.cli.command import argument, quantity
from services.cli.connections import Call, command_group, with_services
from services.cli.interrupts import end_on
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, CommandError, progress, say
from services.cli.tables import Wide
from services.common.quantities import DURATION_MS, DURATION_S, counted
from services.rlm.copy.report import Progress
from services.rlm.copy.segment import CopyLimits
from services.rlm.copy.ship import PartitionShipReport, ShipOutcome, ShipReport, ShipSettings
from services.rlm.copy.ship import ship as ship_once
from services.rlm.kafka_log.log_dir import SkippedFolder
from services.views.documents import Json, fields_as_json
from services.views.texts import partition_text, size_text, sized
from services.views.tier import problem_text

app = command_group()

_SHOWN_GAPS = 10
_ENDED_BY_SIGNAL = 128
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@app.command()
@with_services("rsm", "rlmm")
def ship(
    call: Call,
    log_dirs: list[Path] = argument(
        "Kafka log directories: the broker's log.dirs.", metavar="LOG_DIR"
    ),
    retry_for_s: float = quantity(
        "--retry-for", DURATION_S, "How long to retry while a service is down.", 60.0
    ),
    copy_lease_ms: int = quantity(
        "--copy-lease",
        DURATION_MS,
        "Lease of a copy. If this run is killed, the next one waits this long for the copy "
        "that was in progress.",
        30_000,
        min=1_000,
        max=3_600_000,
    ),
) -> None:
    """Copy every rolled segment that is not in the tier yet, once.

    \b
    Exit codes:
      1         some segments are blocked, some were lost before they could be
                copied (recorded as known gaps), or one of several log
                directories cannot be used; each is named
      130, 143  interrupted; run the command again
    """
    cancelled = _cancelled_by_signals()
    with call.rsm_clients() as (storage, _), call.rlmm_client() as metadata:
        limits = CopyLimits(lease_ms=copy_lease_ms)
        settings = ShipSettings(retry_for_s=retry_for_s, limits=limits)
        with progress() as show:
            shown = ShipProgress(show)
            report = ship_once(log_dirs, storage, metadata, settings, shown, cancelled=cancelled)
    columns = ("partition", "shipped", "size", "blocked", "unsettled", Wide("present"))
    table = ("", columns, map(_as_row, report.partitions))
    call.show(_as_json(report), table, lines=_lines(report))
    for partition in report.partitions:
        if partition.leaves_out:
            say(_unsettled_text(partition))
    for text in _problem_texts(report):
        say(text)
    raise typer.Exit(_exit_code(report))


class ShipProgress(Progress):
    """Show the progress of a pass.

    The whole is not known: the bytes to copy of a partition are known only when its copy begins.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._planned: dict[TopicIdPartition, int] = defaultdict(int)
        self._sent: dict[TopicIdPartition, int] = defaultdict(int)
        self._segments = 0

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        with self._lock:
            self._planned[name] = self._sent[name] + size_bytes
            self._show(self._text())

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        with self._lock:
            self._sent[name] += size_bytes
            self._show(self._text())

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        with self._lock:
            self._segments += 1
            self._show(self._text())

    def _text(self) -> str:
        sent, planned = sum(self._sent.values()), sum(self._planned.values())
        per_s = int(sent / max(time.monotonic() - self._began_s, 1))
        return (
            f"shipped {sized(self._segments, sent)}, {size_text(per_s)}/s; "
            f"{size_text(planned)} found to ship so far"
        )


def _cancelled_by_signals() -> Event:
    """Return an event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    cancelled = Event()

    def end(number: int) -> None:
        cancelled.set()
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise CommandError(
            "interrupted; finished segments are in the tier, run the command again for the rest",
            _ENDED_BY_SIGNAL + number,
        )

    for each in _SIGNALS:
        end_on(each, end)
    return cancelled


def _exit_code(report: ShipReport) -> int:
    if any(problem.kind is ProblemKind.STORE_UNAVAILABLE for problem in _problems(report)):
        return EXIT_FAILED
    return 0 if report.outcome is ShipOutcome.DONE else EXIT_PARTIAL


def _problems(report: ShipReport) -> list[Problem]:
    of_partitions = [problem for partition in report.partitions for problem in partition.problems]
    return [*report.log_dir_problems, *of_partitions]


def _problem_texts(report: ShipReport) -> Iterator[str]:
    """Describe each problem; an unreachable service once, however many partitions wait for it."""
    waiting = Counter[str]()
    for problem in _problems(report):
        if problem.kind is ProblemKind.STORE_UNAVAILABLE:
            waiting[problem.message] += 1
        else:
            yield problem_text(problem)
    for message, count in sorted(waiting.items()):
        yield f"{message}; {counted(count, 'partition')} not finished; run the command again"


def _lines(report: ShipReport) -> Iterator[str]:
    for partition in report.partitions:
        if partition.known_gaps:
            yield _known_gaps_text(partition)
    for reason, count in report.skipped_folders.items():
        yield f"skipped {counted(count, 'folder')} {reason.value}"
    copied = sum(partition.copied_segments for partition in report.partitions)
    copied_bytes = sum(partition.copied_bytes for partition in report.partitions)
    yield f"{report.outcome.value}: {sized(copied, copied_bytes)} shipped"


def _known_gaps_text(report: PartitionShipReport) -> str:
    gaps = report.known_gaps
    shown = ", ".join(f"{first}-{last}" for first, last in gaps[:_SHOWN_GAPS])
    others = f" and {len(gaps) - _SHOWN_GAPS} more" if len(gaps) > _SHOWN_GAPS else ""
    name = partition_text(report.topic_id_partition)
    return f"{name}: known gaps (lost before they were copied): {shown}{others}"


def _unsettled_text(report: PartitionShipReport) -> str:
    unsettled = counted(report.unsettled_segments, "rolled segment")
    return (
        f"{partition_text(report.topic_id_partition)}: {unsettled} not copied, which reach offset "
        f"{report.settled_before_offset}: only lower offsets are known to be settled (no open "
        "transaction, and replicated by the broker's replication-offset-checkpoint). Start the "
        "broker of this directory, then run the command again; if the broker is gone for good, "
        "see docs/understand/copying.md"
    )


def _as_row(report: PartitionShipReport) -> tuple[object, ...]:
    return (
        partition_text(report.topic_id_partition),
        report.copied_segments,
        size_text(report.copied_bytes),
        report.blocked_segments,
        report.unsettled_segments,
        report.present_segments,
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
