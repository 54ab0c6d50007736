"""Report the findings of the demo of the plugin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from demos.tier import OBJECTS_PER_SEGMENT, Segment
from services.cli.output import EXIT_PARTIAL, Table
from services.cli.tables import table_lines
from services.common.quantities import counted
from services.views.texts import size_text

_BYTES_PER_MIB = 1024 * 1024
_BAR_WIDTH = 16
_SHOWN_FAILURES = 5


@dataclass(frozen=True, slots=True)
class SegmentRead:
    """A segment as a consumer read it.

    Attributes:
        seconds: from the end of the previous segment, or from the start, to its last record.
    """

    segment: Segment
    seconds: float

    @property
    def source(self) -> str:
        """Return the source: the broker reads from the tier only what its disk does not have."""
        return "disk" if self.segment.on_disk else "tier"


@dataclass(frozen=True)
class Reading:
    """A consumer's reading from an offset to the end.

    Attributes:
        when: the events before the reading.
        failures: a sentence for each record that was wrong.
        rsm_fetches: FetchLogSegment calls that RSM served meanwhile.
        may_be_held: since its start the broker has read the tier before, and the plugin may still
            hold those bytes.
    """

    when: str
    isolation_level: str
    first_offset: int
    records: int
    failures: Sequence[str]
    segments: Sequence[SegmentRead]
    rsm_fetches: int
    seconds: float
    may_be_held: bool = False

    def size_bytes(self, source: str) -> int:
        return sum(read.segment.size_bytes for read in self._from(source))

    def rate_text(self, source: str) -> str:
        """Format the rate, for example "19.8 MiB from the tier at 41 MiB/s"."""
        size_bytes = self.size_bytes(source)
        seconds = sum(read.seconds for read in self._from(source))
        return f"{size_text(size_bytes)} from the {source} at {_rate(size_bytes, seconds)} MiB/s"

    @property
    def is_from_where_it_should(self) -> bool:
        """Return whether RSM was called for each segment that only the tier has, unless the plugin
        may hold it, and for no other.
        """
        in_tier_only = len(self._from("tier"))
        if not in_tier_only:
            return self.rsm_fetches == 0
        return self.may_be_held or self.rsm_fetches >= in_tier_only

    def _from(self, source: str) -> list[SegmentRead]:
        return [read for read in self.segments if read.source == source]


@dataclass
class DemoKafkaReport:
    """The facts of the demo, added as it proceeds.

    Attributes:
        produced_bytes: keys and values, before compression.
        offloaded: the segments once all due ones had left the disk.
        objects: in the bucket then.
        lost_offsets: offsets that were found neither on the disk nor in a finished segment.
        expired: the segments that retention removed.
        expired_as_set: retention removed the oldest segment alone, and its objects alone.
        left_after_deletion: rows and objects of the deleted topic.
    """

    kafka_version: str
    records: int = 0
    aborted_records: int = 0
    produced_bytes: int = 0
    offloaded: Sequence[Segment] = ()
    objects: int = 0
    is_each_segment_stored: bool = False
    lost_offsets: list[int] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    expired: Sequence[Segment] = ()
    expired_as_set: bool = False
    left_after_deletion: int = -1
    seconds: float = 0.0

    @property
    def left_the_disk(self) -> int:
        return sum(not segment.on_disk for segment in self.offloaded)

    @property
    def different_records(self) -> int:
        return sum(len(reading.failures) for reading in self.readings)

    @property
    def checks(self) -> dict[str, bool]:
        """Return each claim of the demo, and whether it was proved."""
        return {
            "every_record_is_as_it_was_sent": bool(self.readings) and not self.different_records,
            "segments_left_the_disk": self.left_the_disk > 0,
            "none_left_before_it_was_finished": not self.lost_offsets,
            "each_finished_segment_has_its_objects": self.is_each_segment_stored,
            "reads_came_from_where_they_should": all(
                reading.is_from_where_it_should for reading in self.readings
            ),
            "expired_segment_is_gone": self.expired_as_set,
            "deleted_topic_is_gone": self.left_after_deletion == 0,
        }

    @property
    def exit_code(self) -> int:
        return 0 if all(self.checks.values()) else EXIT_PARTIAL


def summary(report: DemoKafkaReport) -> list[str]:
    """Return the verdict in a line, and a line for each failed check."""
    different = report.different_records
    equal = "all equal" if not different else f"{different:,} DIFFERENT"
    gone = "its objects are gone" if report.expired_as_set else "NOT AS SET"
    rest = report.left_after_deletion
    deleted = "no object is left" if rest == 0 else f"{rest} ROWS AND OBJECTS ARE LEFT"
    lines = [
        f"{report.records:,} records, {equal} in {counted(len(report.readings), 'reading')}; "
        f"{report.left_the_disk} of {counted(len(report.offloaded), 'segment')} left the disk, "
        f"{'none' if not report.lost_offsets else 'SOME'} before it was in the tier; "
        f"{len(report.expired)} expired, {gone}; topic deleted, {deleted}; "
        f"{report.seconds:.0f} s in all"
    ]
    for reading in report.readings:
        for failure in reading.failures[:_SHOWN_FAILURES]:
            lines.append(f"{reading.when}, {reading.isolation_level}: {failure}")
    lines += [f"NOT SO: {name.replace('_', ' ')}" for name, so in report.checks.items() if not so]
    return lines


def picture_lines(segments: Sequence[Segment]) -> list[str]:
    """Draw a picture without its title, to be drawn again."""
    _, columns, rows = picture(segments)
    return table_lines(columns, rows)


def picture(segments: Sequence[Segment], reads: Sequence[SegmentRead] = ()) -> Table:
    """Draw a row for each segment: disk, tier, and the sources of the reads."""
    seconds = {read.segment.first_offset: read.seconds for read in reads}
    largest_bytes = max([1, *(segment.size_bytes for segment in segments)])
    rows = []
    for segment in segments:
        bar = "#" * math.ceil(_BAR_WIDTH * segment.size_bytes / largest_bytes)
        last = "" if segment.last_offset is None else str(segment.last_offset)
        on_disk, in_tier = (bar if there else "-" for there in (segment.on_disk, segment.in_tier))
        row = [f"{segment.first_offset}-{last}", size_text(segment.size_bytes), on_disk, in_tier]
        if reads:
            took = seconds.get(segment.first_offset, 0.0)
            source = "disk" if segment.on_disk else "tier"
            row += [source, _rate(segment.size_bytes, took)]
        rows.append(row)
    columns = ["offsets", "size", "disk", "tier", *(["read from", "MiB/s"] if reads else [])]
    return "What the disk has and what the tier has", columns, rows


def as_json(report: DemoKafkaReport) -> dict[str, object]:
    return {
        "kafka_version": report.kafka_version,
        "records": report.records,
        "aborted_records": report.aborted_records,
        "produced_bytes": report.produced_bytes,
        "segments": [segment_as_json(segment) for segment in report.offloaded],
        "left_the_disk": report.left_the_disk,
        "lost_offsets": report.lost_offsets,
        "objects": report.objects,
        "objects_per_segment": OBJECTS_PER_SEGMENT,
        "readings": [_reading_as_json(reading) for reading in report.readings],
        "expired": [segment_as_json(segment) for segment in report.expired],
        "left_after_deletion": report.left_after_deletion,
        "checks": report.checks,
        "seconds": round(report.seconds, 1),
    }


def _reading_as_json(reading: Reading) -> dict[str, object]:
    return {
        "when": reading.when,
        "isolation_level": reading.isolation_level,
        "first_offset": reading.first_offset,
        "records": reading.records,
        "different_records": len(reading.failures),
        "failures": list(reading.failures[:_SHOWN_FAILURES]),
        "tier_bytes": reading.size_bytes("tier"),
        "disk_bytes": reading.size_bytes("disk"),
        "rsm_fetches": reading.rsm_fetches,
        "segments": [
            {
                "first_offset": read.segment.first_offset,
                "size_bytes": read.segment.size_bytes,
                "source": read.source,
                "seconds": round(read.seconds, 4),
            }
            for read in reading.segments
        ],
        "seconds": round(reading.seconds, 3),
    }


def segment_as_json(segment: Segment) -> dict[str, object]:
    return {
        "first_offset": segment.first_offset,
        "last_offset": segment.last_offset,
        "size_bytes": segment.size_bytes,
        "on_disk": segment.on_disk,
        "in_tier": segment.in_tier,
    }


def _rate(size_bytes: int, seconds: float) -> str:
    return f"{size_bytes / _BYTES_PER_MIB / seconds:.0f}" if seconds > 0 else "-"
