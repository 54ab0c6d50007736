"""Show on one screen whether the tier is well: `sediment status`."""

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from services.api.errors import NotServedError, RemoteStorageError
from services.api.ids import uuid_to_text
from services.api.partitions import AnomalyKind, VerificationKind
from services.api.remote_log_manager import CopyLag
from services.api.remote_log_metadata_manager import RecordedSweep, SweepOutcome
from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlm,
    Rlmm,
    Rsm,
    command_group,
    connected_rlm,
    connected_rlmm,
)
from services.cli.endpoints import (
    Endpoint,
    Severity,
    is_ready,
    known_addresses,
    probed,
    severity_of,
)
from services.cli.output import (
    Format,
    age_text,
    print_json,
    print_table,
    size_text,
)
from services.cli.status_facts import (
    Bounds,
    StuckSegment,
    TierFacts,
    lag_severity,
    tier_facts,
)

app = command_group()

_HOUR_MS = 3_600_000
_TEXT_WIDTH = 48
_SHOWN = 3
"""The most stuck segments that the table names."""


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


@app.command()
def status(
    stuck_after_ms: Annotated[
        int, typer.Option(min=0, help="A copy or deletion is stuck after this time, ms.")
    ] = _HOUR_MS,
    anomalies_ms: Annotated[
        int, typer.Option(min=0, help="Count anomalies that a run saw since this time, ms.")
    ] = 8 * 24 * _HOUR_MS,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    rlm: Rlm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show on one screen whether the tier is well.

    \b
    Exit codes:
      0  nothing is wrong
      1  a warning: something needs attention
      2  critical: a service is away or not ready, data is damaged, missing or
         about to be lost before it is copied; or the command line is wrong
    """
    addresses = known_addresses({"rsm": rsm, "rlmm": rlmm, "rlm": rlm}, data_dir)
    endpoints = probed(addresses, data_dir)
    tier, lags, now_ms = None, list[CopyLag](), time.time_ns() // 1_000_000
    unread: list[Line] = []
    if is_ready(endpoints, "rlmm"):
        with connected_rlmm(addresses["rlmm"], data_dir) as metadata:
            try:
                tier = tier_facts(metadata, Bounds(stuck_after_ms, anomalies_ms))
            except RemoteStorageError as e:
                unread.append(_unread("tier", e))
    for endpoint in endpoints:
        if endpoint.service == "rlm" and endpoint.address and endpoint.severity is Severity.OK:
            with connected_rlm(endpoint.address, data_dir) as manager:
                try:
                    lags.append(manager.copy_lag())
                except RemoteStorageError as e:
                    unread.append(_unread("copying", e))
    found = Status(endpoints, tier, lags, now_ms)
    lines = [*lines_of(found), *unread]
    if output is Format.JSON:
        print_json(_as_json(found, lines))
    else:
        print_table("Status", ("what", "state", ""), _rows(lines))
    raise typer.Exit(int(max(line.severity for line in lines)))


def _unread(what: str, error: RemoteStorageError) -> Line:
    """Describe a call that a ready service refused; a warning if its release does not have it."""
    is_older = isinstance(error, NotServedError)
    return Line(what, Severity.WARNING if is_older else Severity.CRITICAL, f"not read: {error}")


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


def _store_lines(endpoints: Sequence[Endpoint]) -> Iterator[Line]:
    """Describe what the stores do by themselves, as each RSM says; first what is bad."""
    notes = dict.fromkeys(note for each in endpoints for note in each.state.notes)
    if notes:
        found = sorted(notes, key=lambda note: severity_of(note.level), reverse=True)
        worst = severity_of(found[0].level)
        yield Line("store", worst, "; ".join(note.text for note in found))


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


def _unchecked_text(lag: CopyLag) -> str:
    return f"{lag.unchecked_partitions:,} partitions changed since their latest pass"


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
    tp = stuck.topic_id_partition
    return (
        f"{tp.topic}-{tp.partition} offset {stuck.start_offset} {stuck.state.value} "
        f"for {age_text(stuck.age_ms)}"
    )


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
    if tier.unread_sweeps:
        return f"not read: {tier.unread_sweeps}"
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
    if tier.unread_verifications:
        return f"not read: {tier.unread_verifications}"
    last, never = tier.last.get(kind), tier.unverified[kind]
    if last is None:
        return "no topic was verified" if never else "nothing to verify"
    text = f"the oldest {age_text(tier.now_ms - last.ended_ms)} ago ({last.topic})"
    return f"{text}; {never:,} topics never as a whole" if never else text


def _rows(lines: Sequence[Line]) -> Iterator[tuple[str, str, str]]:
    """Yield table rows of at most 80 columns: a long text takes several."""
    for line in lines:
        first, *rest = textwrap.wrap(line.text, _TEXT_WIDTH) or [""]
        yield line.what, line.severity.name.lower(), first
        for text in rest:
            yield "", "", text


def _as_json(status: Status, lines: Sequence[Line]) -> dict[str, object]:
    return {
        "severity": max(line.severity for line in lines).name,
        "services": [
            {
                "service": each.service,
                "address": each.address,
                "severity": each.severity.name,
                "version": each.state.version,
                "ready": each.state.is_ready,
                "problem": each.state.problem,
                "unready": each.state.unready,
                "notes": [note._asdict() for note in each.state.notes],
            }
            for each in status.endpoints
        ],
        "copy_lags": [{"severity": lag_severity(lag).name, **asdict(lag)} for lag in status.lags],
        "tier": None if status.tier is None else _tier_as_json(status.tier),
        "lines": [
            {"what": line.what, "severity": line.severity.name, "text": line.text} for line in lines
        ],
    }


def _tier_as_json(tier: TierFacts) -> dict[str, object]:
    return {
        "topics": tier.topics,
        "partitions": tier.partitions,
        **asdict(tier.totals),
        "unfinished_segments": tier.unfinished,
        "unread_partitions": tier.unread_partitions,
        "stuck": [
            {
                "topic": each.topic_id_partition.topic,
                "topic_id": uuid_to_text(each.topic_id_partition.topic_id),
                "partition": each.topic_id_partition.partition,
                "state": each.state.value,
                "start_offset": each.start_offset,
                "age_ms": each.age_ms,
            }
            for each in tier.stuck
        ],
        "held_topics": sorted(tier.held),
        "deleting_partitions": tier.marked,
        "oldest_mark_ms": tier.oldest_mark_ms,
        "anomalies": {kind.value: tier.anomalies[kind] for kind in AnomalyKind},
        "has_more_anomalies": tier.has_more_anomalies,
        "verifications": {
            kind.value: {
                "oldest_ended_ms": None if (last := tier.last.get(kind)) is None else last.ended_ms,
                "oldest_topic": None if last is None else last.topic,
                "unverified_topics": tier.unverified[kind],
            }
            for kind in VerificationKind
        },
        "sweeps": [sweep_as_json(each) for each in tier.sweeps],
    }


def sweep_as_json(sweep: RecordedSweep) -> dict[str, object]:
    described = asdict(sweep.record)
    kind, outcome = sweep.record.kind.value, sweep.record.outcome.value
    return {**described, "kind": kind, "outcome": outcome, "ended_ms": sweep.ended_ms}
