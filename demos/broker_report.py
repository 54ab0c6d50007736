"""Report the findings of the demo of RLM beside a stock broker."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from demos.kafka_report import picture_lines, segment_as_json
from demos.tier import Segment, View
from services.cli.output import EXIT_PARTIAL
from services.cli.tables import table_lines
from services.common.quantities import counted
from services.views.texts import size_text, sized

_SHOWN_FAILURES = 5
_SHOWN_SEGMENTS = 14


@dataclass(frozen=True)
class Reading:
    """The records that RLM's Fetch returned, from offset 0 to the end.

    Attributes:
        when: the events before the reading.
        failures: a sentence for each record that was wrong.
        from_tier, from_disk: how many records came from there.
        misplaced: records that came from the tier although the disk has them, or the other way.
    """

    when: str
    records: int
    failures: Sequence[str]
    from_tier: int
    from_disk: int
    misplaced: int
    seconds: float


@dataclass
class DemoBrokerReport:
    """The facts of the demo, added as it proceeds.

    Attributes:
        produced_bytes: keys and values, before compression.
        segments: at the end, by offset.
        lost_offsets: offsets that were found neither on the disk nor in a finished segment.
        is_each_segment_stored: each finished segment has its objects, and no object is without one.
    """

    kafka_version: str
    records: int = 0
    produced_bytes: int = 0
    segments: Sequence[Segment] = ()
    lost_offsets: list[int] = field(default_factory=list)
    is_each_segment_stored: bool = False
    readings: list[Reading] = field(default_factory=list)
    rlm_kills: int = 0
    broker_restarts: int = 0
    seconds: float = 0.0

    @property
    def left_the_disk(self) -> int:
        return sum(not segment.on_disk for segment in self.segments)

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
                reading.from_tier > 0 and not reading.misplaced for reading in self.readings
            ),
            "rlm_was_killed": self.rlm_kills > 0,
            "broker_was_restarted": self.broker_restarts > 0,
        }

    @property
    def exit_code(self) -> int:
        return 0 if all(self.checks.values()) else EXIT_PARTIAL


def summary(report: DemoBrokerReport) -> list[str]:
    """Return the verdict in a line, and a line for each failed check."""
    different = report.different_records
    equal = "all equal" if not different else f"{different:,} DIFFERENT"
    lines = [
        f"{report.records:,} records, {equal} in {counted(len(report.readings), 'reading')}; "
        f"{report.left_the_disk} of {counted(len(report.segments), 'segment')} left the disk, "
        f"{'none' if not report.lost_offsets else 'SOME'} before it was in the tier; RLM killed "
        f"{report.rlm_kills} x, the broker restarted {report.broker_restarts} x; "
        f"{report.seconds:.0f} s in all"
    ]
    for reading in report.readings:
        lines += [f"{reading.when}: {failure}" for failure in reading.failures[:_SHOWN_FAILURES]]
    lines += [f"NOT SO: {name.replace('_', ' ')}" for name, so in report.checks.items() if not so]
    return lines


def live_picture(view: View, rlm: str) -> list[str]:
    """Draw the youngest segments and the totals; `rlm` is the present activity of RLM."""
    lagging = lagging_segments(view)
    objects = counted(len(view.objects), "object")
    tier_start = view.finished[0].start_offset if view.finished else "-"
    disk_bytes, lag_bytes = (sum(s.size_bytes for s in part) for part in (view.disk, lagging))
    start = str(view.local_log_start_offset)
    totals = [
        ("local log", size_text(disk_bytes), "local log start", start),
        ("tier", f"{objects} ({size_text(view.tier_bytes)})", "log start", str(tier_start)),
        ("lag", sized(len(lagging), lag_bytes), "RLM", rlm),
    ]
    lines = picture_lines(view.segments[-_SHOWN_SEGMENTS:])
    return [*lines, "", *table_lines(("", "", "", ""), totals)]


def lagging_segments(view: View) -> list[Segment]:
    """Return the rolled segments that are not finished in the tier."""
    return [s for s in view.segments if s.last_offset is not None and not s.in_tier]


def as_json(report: DemoBrokerReport) -> dict[str, object]:
    return {
        "kafka_version": report.kafka_version,
        "records": report.records,
        "produced_bytes": report.produced_bytes,
        "segments": [segment_as_json(segment) for segment in report.segments],
        "left_the_disk": report.left_the_disk,
        "lost_offsets": report.lost_offsets,
        "readings": [_reading_as_json(reading) for reading in report.readings],
        "rlm_kills": report.rlm_kills,
        "broker_restarts": report.broker_restarts,
        "checks": report.checks,
        "seconds": round(report.seconds, 1),
    }


def _reading_as_json(reading: Reading) -> dict[str, object]:
    return {
        "when": reading.when,
        "records": reading.records,
        "different_records": len(reading.failures),
        "failures": list(reading.failures[:_SHOWN_FAILURES]),
        "from_tier": reading.from_tier,
        "from_disk": reading.from_disk,
        "misplaced": reading.misplaced,
        "seconds": round(reading.seconds, 3),
    }
