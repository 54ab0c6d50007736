"""Put into words whether the tier is well: a line for each thing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.api.operations import RecordedSweep, SeenAnomaly, SweepOutcome, VerificationKind
from services.api.remote_log_manager import CopyLag, Problem
from services.views.documents import Json, fields_as_json
from services.views.endpoints import Endpoint, Severity, severity_of
from services.views.texts import age_text, partition_text, size_text
from services.views.tier_facts import StuckSegment, TierFacts, lag_severity

_SHOWN = 3
"""The most stuck segments that the table names."""


def problem_text(problem: Problem) -> str:
    at = "" if problem.offset is None else f" at offset {problem.offset}"
    held = f"; holds back {problem.held_segments} segment(s)" if problem.held_segments else ""
    return f"{problem.kind.value}: {problem.path}{at}: {problem.message}{held}"


def anomaly_as_json(seen: SeenAnomaly) -> Json:
    when = fields_as_json(seen, "first_seen_ms", "last_seen_ms", "times_seen", "run_id")
    return fields_as_json(seen.anomaly) | when


@dataclass(frozen=True)
class Status:
    """Everything that the command shows; None for what could not be read."""

    endpoints: Sequence[Endpoint]
    tier: TierFacts | None
    lags: Sequence[CopyLag]
    now_ms: int


@dataclass(frozen=True)
class Line:
    """A line of the screen."""

    what: str
    severity: Severity
    text: str


def lines_of(status: Status) -> Iterator[Line]:
    """Describe everything, a line for each thing."""
    for endpoint in status.endpoints:
        hint = "" if endpoint.severity is Severity.OK else "; next: `sediment doctor`"
        yield Line(endpoint.service, endpoint.severity, f"{endpoint.text}{hint}")
    yield from _store_lines(status.endpoints)
    for lag in status.lags:
        yield Line("copying", lag_severity(lag), lag_text(lag, status.now_ms))
    tier = status.tier
    if tier is None:
        return
    yield Line("tier", Severity.OK, totals_text(tier))
    yield Line("unfinished", tier.stuck_severity, unfinished_text(tier))
    yield Line("removal", tier.marked_severity, removal_text(tier))
    yield Line("anomalies", tier.anomaly_severity, anomalies_text(tier))
    yield Line("holds", Severity.OK, ", ".join(sorted(tier.held)) or "none")
    yield Line("sweeps", tier.sweep_severity, sweeps_text(tier))
    for kind in VerificationKind:
        yield Line(kind.value.lower(), Severity.OK, verification_text(tier, kind))


def lag_text(lag: CopyLag, now_ms: int) -> str:
    """Describe how far an RLM's copies are behind."""
    if lag.drained:
        behind = lag_text(replace(lag, drained=False), now_ms)
        return f"drained, until a restart or `sediment drain --cancel`; {behind}"
    if not lag.partitions:
        return "this RLM leads no partition: it copies nothing"
    of = f"broker {lag.broker_id}, {lag.partitions:,} partitions"
    if lag.lost_partitions:
        of += f" (records of {lag.lost_partitions:,} were deleted before their copy)"
    if not (lag.uncopied_segments or lag.held_back_partitions or lag.earlier_histories):
        if lag.unchecked_partitions:
            return f"{of}: no lag was found, {_unchecked_text(lag)}"
        return f"{of}: everything that is rolled is copied"
    parts = [
        f"{of}: {lag.uncopied_segments:,} segments of {lag.lagging_partitions:,} wait, "
        f"{size_text(lag.uncopied_bytes)}"
    ]
    if lag.oldest_timestamp_ms is not None:
        parts.append(f"the oldest is {age_text(now_ms - lag.oldest_timestamp_ms)} old")
    if lag.local_retention_used is not None:
        parts.append(f"{lag.local_retention_used:.0%} of its local retention has passed")
    if lag.held_back_partitions:
        parts.append(f"{lag.held_back_partitions:,} partitions are held back")
    if lag.earlier_histories:
        parts.append(f"{lag.earlier_histories:,} partitions have an earlier history in the tier")
    if lag.unchecked_partitions:
        parts.append(_unchecked_text(lag))
    return "; ".join(parts)


def totals_text(tier: TierFacts) -> str:
    """Describe what the tier holds."""
    return (
        f"{tier.topics:,} topics, {tier.partitions:,} partitions, "
        f"{tier.totals.finished_segments:,} segments, {size_text(tier.totals.finished_bytes)}"
    )


def unfinished_text(tier: TierFacts) -> str:
    """Describe copies and deletions that have not finished, first those that are stuck."""
    parts = [f"{tier.unfinished:,} copies and deletions in progress"]
    if tier.stuck:
        parts = [f"{len(tier.stuck):,} of {tier.unfinished:,} copies and deletions are stuck"]
        parts += [_stuck_text(each) for each in tier.stuck[:_SHOWN]]
    if tier.unread_partitions:
        parts.append(f"{tier.unread_partitions:,} partitions with more were not read")
    return "; ".join(parts)


def _stuck_text(stuck: StuckSegment) -> str:
    where = f"{partition_text(stuck.topic_id_partition)} offset {stuck.start_offset}"
    return f"{where} {stuck.state.value} for {age_text(stuck.age_ms)}"


def removal_text(tier: TierFacts) -> str:
    """Describe partitions that are being deleted."""
    if tier.oldest_mark_ms is None:
        return "no partition is being deleted"
    age = age_text(tier.now_ms - tier.oldest_mark_ms)
    return f"{tier.marked:,} partitions are being deleted, the first for {age}"


def anomalies_text(tier: TierFacts) -> str:
    """Describe what recent runs of reconcile and scrub found."""
    found = ", ".join(f"{count:,} {kind.value}" for kind, count in tier.anomalies.items() if count)
    return f"{found or 'none'}{' and more' if tier.has_more_anomalies else ''}"


def sweeps_text(tier: TierFacts) -> str:
    """Describe the last sweeps, those first that did not end well."""
    sweeps = sorted(tier.sweeps, key=lambda each: each.record.outcome is SweepOutcome.DONE)
    shown = [_sweep_text(each, tier.now_ms) for each in sweeps[:_SHOWN]]
    others = len(sweeps) - _SHOWN
    return "; ".join([*shown, *([f"and {others} others"] if others > 0 else [])]) or "none ran yet"


def _sweep_text(sweep: RecordedSweep, now_ms: int) -> str:
    record = sweep.record
    of = f" of {', '.join(record.topics[:_SHOWN])}" if record.topics else ""
    more = " ..." if len(record.topics) > _SHOWN else ""
    return (
        f"{record.kind.value.lower()}{of}{more}: {record.outcome.value.lower()} "
        f"{age_text(now_ms - sweep.ended_ms)} ago, deleted {record.deleted_segments:,} segments, "
        f"{size_text(record.deleted_bytes)}"
    )


def verification_text(tier: TierFacts, kind: VerificationKind) -> str:
    """Describe how long ago the topics were verified."""
    last, never = tier.last.get(kind), tier.unverified[kind]
    if last is None:
        return "no topic was verified" if never else "nothing to verify"
    text = f"the oldest {age_text(tier.now_ms - last.ended_ms)} ago ({last.topic})"
    return f"{text}; {never:,} topics never as a whole" if never else text


def sweep_as_json(sweep: RecordedSweep) -> Json:
    return {**fields_as_json(sweep.record), "ended_ms": sweep.ended_ms}


def _store_lines(endpoints: Sequence[Endpoint]) -> Iterator[Line]:
    """Describe what the stores do by themselves, as each RSM says; first what is bad."""
    notes = dict.fromkeys(note for each in endpoints for note in each.state.notes)
    if notes:
        found = sorted(notes, key=lambda note: severity_of(note.level), reverse=True)
        worst = severity_of(found[0].level)
        yield Line("store", worst, "; ".join(note.text for note in found))


def _unchecked_text(lag: CopyLag) -> str:
    return f"{lag.unchecked_partitions:,} partitions changed since their latest pass"
