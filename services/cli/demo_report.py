"""What `sediment demo` shows at its end."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.api.remote_log_manager import PartitionDescription, Problem
from services.cli.failures import EXIT_PARTIAL
from services.cli.output import Format, print_json, print_table, say, size_text
from services.cli.partitions import problem_as_json, problem_text
from services.cli.read_back import Reading

_SHOWN_FAILURES = 10
_COLUMNS = (
    "partition",
    "shipped",
    "offsets read",
    "batches",
    "tier bytes",
    "disk bytes",
    "failed",
)


@dataclass(frozen=True, slots=True)
class DemoReport:
    """What was shipped, and what of it came back.

    Attributes:
        log_dir_problems: folders of the log directory that no partition could be made of.
        readings: of the partitions in `shipped`, in the same order.
    """

    log_dir_problems: Sequence[Problem]
    shipped: Sequence[PartitionDescription]
    readings: Sequence[Reading]
    seconds: float

    @property
    def problems(self) -> list[Problem]:
        of_partitions = [
            problem for description in self.shipped for problem in description.problems
        ]
        return [*self.log_dir_problems, *of_partitions]

    @property
    def exit_code(self) -> int:
        """0 where every batch came back as it was."""
        failed = any(reading.failures for reading in self.readings)
        held = any(problem.held_segments for problem in self.problems)
        return EXIT_PARTIAL if failed or held or self.log_dir_problems else 0


def show(report: DemoReport, output: Format) -> None:
    if output is Format.JSON:
        print_json(_as_json(report))
    else:
        _print(report)
    for problem in report.problems:
        say(problem_text(problem))
    for reading in report.readings:
        tp = reading.topic_id_partition
        for failure in reading.failures[:_SHOWN_FAILURES]:
            offsets = f"{failure.first_offset}-{failure.last_offset}"
            say(f"{tp.topic}-{tp.partition} offsets {offsets}: {failure.reason}")


def _print(report: DemoReport) -> None:
    rows = [_as_row(d, r) for d, r in zip(report.shipped, report.readings, strict=True)]
    print_table("Read back, every batch compared with the broker's own file", _COLUMNS, rows)
    remote = sum(reading.remote_bytes for reading in report.readings)
    local = sum(reading.local_bytes for reading in report.readings)
    batches = sum(reading.batches for reading in report.readings)
    failed = sum(len(reading.failures) for reading in report.readings)
    segments = sum(description.remote_segments for description in report.shipped)
    say(
        f"{segments} segments shipped; {batches:,} batches read back, {size_text(remote)} from the "
        f"tier and {size_text(local)} from disk; {failed} failed; {report.seconds:.0f} s in all"
    )


def _as_row(description: PartitionDescription, reading: Reading) -> tuple[object, ...]:
    tp = description.topic_id_partition
    offsets = f"{reading.first_offset}-{reading.last_offset}" if reading.batches else "none"
    return (
        f"{tp.topic}-{tp.partition}",
        description.remote_segments,
        offsets,
        reading.batches,
        reading.remote_bytes,
        reading.local_bytes,
        len(reading.failures),
    )


def _as_json(report: DemoReport) -> dict[str, object]:
    pairs = zip(report.shipped, report.readings, strict=True)
    return {
        "partitions": [_partition_as_json(d, r) for d, r in pairs],
        "problems": [problem_as_json(problem) for problem in report.problems],
        "seconds": round(report.seconds, 1),
    }


def _partition_as_json(d: PartitionDescription, r: Reading) -> dict[str, object]:
    return {
        "topic": d.topic_id_partition.topic,
        "partition": d.topic_id_partition.partition,
        "remote_segments": d.remote_segments,
        "remote_size_bytes": d.remote_size_bytes,
        "batches": r.batches,
        "first_offset": r.first_offset,
        "last_offset": r.last_offset,
        "read_from_tier_bytes": r.remote_bytes,
        "read_from_disk_bytes": r.local_bytes,
        "failures": [[f.first_offset, f.last_offset, f.reason] for f in r.failures],
    }
