"""Put into words whether the tier is well: a line for each thing."""

import shutil
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.api.errors import RemoteStorageError
from services.api.operations import CHECKS, AnomalyKind, RecordedRun, RunKind, RunOutcome
from services.api.remote_log_manager import CopyLag, Problem
from services.common.quantities import counted
from services.views.documents import Json
from services.views.endpoints import Endpoint, Severity, TierClients, is_ready, severity_of
from services.views.texts import age_text, partition_text, size_text, sized, state_text
from services.views.tier_facts import LOST, Bounds, TierFacts, tier_facts

_SHOWN = 3
"""The most stuck segments, sweeps and topics that a line names."""
_DAY_MS = 86_400_000
UNMAINTAINED_MS = 2 * _DAY_MS
_LOW_DISK_BYTES = (1 << 30, 10 << 30)
"""A disk is nearly full below a tenth of its size, but at least and at most at these bytes."""
NEVER_LOOKED = "never looked"
_MAINTAIN = "sediment db maintain"
_LATE = 0.5
"""The share of its local retention after which a lag is a warning."""


def problem_text(problem: Problem) -> str:
    at = "" if problem.offset is None else f" at offset {problem.offset}"
    blocks = problem.blocked_segments
    blocked = f"; blocks {counted(blocks, 'segment')}" if blocks else ""
    return f"{problem.kind.value}: {problem.path}{at}: {problem.message}{blocked}"


@dataclass(frozen=True)
class Line:
    """A line of the screen: what it is about, how bad that is, and the words for it.

    Attributes:
        next: the command or step that helps; "" if nothing is to be done.
    """

    what: str
    severity: Severity
    text: str
    next: str = ""

    def as_json(self) -> Json:
        document: Json = {"what": self.what, "severity": self.severity.name}
        return {**document, "text": self.text, "next": self.next}


def with_next(text: str, next_step: str, width: int) -> list[str]:
    """Wrap a text and what to do next; that begins a line, unless all fits on one."""
    step = f"next: {next_step}" if next_step else ""
    if len(text) + len(step) + 2 <= width:
        return ["; ".join(filter(None, (text, step)))]
    return [*textwrap.wrap(text, width), *textwrap.wrap(step, width)]


@dataclass(frozen=True)
class Status:
    """What the services that are ready know of the tier.

    Attributes:
        tier: None if RLMM is not ready or refused a call.
        lags: of each RLM that is ready.
        unread: a line for each call that a ready service refused.
    """

    tier: TierFacts | None
    lags: Sequence[CopyLag]
    now_ms: int
    unread: Sequence[Line] = ()


def read_status(clients: TierClients, endpoints: Sequence[Endpoint], bounds: Bounds) -> Status:
    """Read the tier from RLMM and the lag of each RLM, if they are ready."""
    tier, lags, unread = None, list[CopyLag](), list[Line]()
    if clients.metadata is not None and is_ready(endpoints, "rlmm"):
        try:
            tier = tier_facts(clients.metadata, bounds)
        except RemoteStorageError as e:
            unread.append(Line("tier", Severity.CRITICAL, f"not read: {e}"))
    for each in endpoints:
        if each.address in clients.logs and each.service == "rlm" and each.severity is Severity.OK:
            try:
                lags.append(clients.logs[each.address].copy_lag())
            except RemoteStorageError as e:
                unread.append(Line("copying", Severity.CRITICAL, f"not read: {e}"))
    return Status(tier, lags, time.time_ns() // 1_000_000, unread)


def service_lines(endpoints: Sequence[Endpoint]) -> Iterator[Line]:
    """Describe the services, a line for each address, and what the stores do by themselves."""
    for endpoint in endpoints:
        next_step = "sediment doctor" if endpoint.severity > Severity.OK else ""
        yield Line(endpoint.service, endpoint.severity, endpoint.text, next_step)
    notes = dict.fromkeys(note for each in endpoints for note in each.state.notes)
    if notes:
        worst_first = sorted(notes, key=lambda note: severity_of(note.level), reverse=True)
        text = "; ".join(note.text for note in worst_first)
        yield Line("store", severity_of(worst_first[0].level), text)


def tier_lines(status: Status) -> Iterator[Line]:
    """Describe copying and the tier, a line for each thing."""
    for lag in status.lags:
        yield lag_line(lag, status.now_ms)
    tier = status.tier
    if tier is not None:
        totals = tier.totals
        yield Line(
            "tier",
            Severity.OK,
            f"{counted(tier.topics, 'topic')}, {counted(tier.partitions, 'partition')}, "
            f"{sized(totals.finished_segments, totals.finished_bytes)}",
        )
        yield _unfinished_line(tier)
        yield _removal_line(tier)
        yield _holds_line(tier)
        yield _sweep_line(tier)
        yield from upkeep_lines(tier)
    yield from status.unread


def _unconfirmed_line(topics: Sequence[str]) -> Line:
    return Line(
        "deletions",
        Severity.WARNING,
        f"too large for one day, waiting for a confirmation: {', '.join(topics)}",
        f"check `sediment retention`, then run `sediment deletions confirm {topics[0]}`",
    )


def upkeep_lines(tier: TierFacts) -> Iterator[Line]:
    """Describe what looks after the tier: what it found, and how long ago it ran."""
    if tier.unconfirmed:
        yield _unconfirmed_line(sorted(tier.unconfirmed))
    yield _anomaly_line(tier)
    for kind in CHECKS:
        yield _check_line(tier, kind)
    if tier.maintained_ms is None:
        yield Line("maintenance", Severity.UNKNOWN, "never ran", _MAINTAIN)
        return
    age_ms = tier.now_ms - tier.maintained_ms
    is_late = age_ms > UNMAINTAINED_MS
    severity = Severity.WARNING if is_late else Severity.OK
    text = f"of the database, {age_text(age_ms)} ago"
    yield Line("maintenance", severity, text, _MAINTAIN if is_late else "")


def disk_line(directory: Path) -> Line:
    """Describe how much space a directory's disk has left.

    Raises:
        OSError: it cannot be read.
    """
    disk = shutil.disk_usage(directory)
    least, most = _LOW_DISK_BYTES
    is_low = disk.free < min(max(disk.total // 10, least), most)
    text = f"{directory}: {size_text(disk.free)} of {size_text(disk.total)} are free"
    severity = Severity.WARNING if is_low else Severity.OK
    return Line("disk", severity, text, "free space there, before writes fail" if is_low else "")


def lag_line(lag: CopyLag, now_ms: int) -> Line:
    """Describe how far an RLM's copies are behind; before data may be lost, that is critical."""
    used = lag.local_retention_used or 0.0
    severity = Severity.OK
    if used >= _LATE or lag.blocked_partitions > 0 or lag.drained or lag.earlier_histories:
        severity = Severity.WARNING
    if lag.broker_retention_set or lag.deleted_at_broker:
        severity = Severity.WARNING
    if used >= 1:
        severity = Severity.CRITICAL
    drained = "drained, until a restart or `sediment drain --cancel`; " if lag.drained else ""
    next_step = "sediment partitions" if severity > Severity.OK else ""
    return Line("copying", severity, f"{drained}{_lag_text(lag, now_ms)}", next_step)


def _lag_text(lag: CopyLag, now_ms: int) -> str:
    if not lag.partitions:
        return "this RLM leads no partition: it copies nothing"
    of = f"broker {lag.broker_id}, {counted(lag.partitions, 'partition')}"
    if lag.lost_partitions:
        of += f" (records of {lag.lost_partitions:,} were deleted before their copy)"
    if lag.broker_retention_set:
        set_at = counted(lag.broker_retention_set, "partition")
        of += f" (at {set_at} the broker's own retention may delete what is not copied)"
    if lag.deleted_at_broker:
        deleted = counted(lag.deleted_at_broker, "partition")
        of += (
            f" (records of {deleted} were deleted at the broker alone: `sediment topics "
            "delete-records` deletes them from the tier)"
        )
    if not (lag.lag_segments or lag.blocked_partitions or lag.earlier_histories):
        if lag.unchecked_partitions:
            return f"{of}: no lag was found, {_unchecked_text(lag)}"
        return f"{of}: no lag, everything that is rolled is in the tier"
    parts = [
        f"{of}: a lag of {sized(lag.lag_segments, lag.lag_bytes)} in "
        f"{counted(lag.lagging_partitions, 'partition')}"
    ]
    if lag.oldest_timestamp_ms is not None:
        parts.append(f"the oldest is {age_text(now_ms - lag.oldest_timestamp_ms)} old")
    if lag.local_retention_used is not None:
        parts.append(f"{lag.local_retention_used:.0%} of its local retention has passed")
    if lag.blocked_partitions:
        parts.append(f"{counted(lag.blocked_partitions, 'partition')} blocked")
    if lag.earlier_histories:
        earlier = counted(lag.earlier_histories, "partition")
        parts.append(f"{earlier} with an earlier history in the tier")
    if lag.unchecked_partitions:
        parts.append(_unchecked_text(lag))
    return "; ".join(parts)


def _holds_line(tier: TierFacts) -> Line:
    oldest = tier.oldest_hold
    if oldest is None:
        return Line("holds", Severity.OK, "none")
    of = "all topics" if oldest.topic_id is None else oldest.scope
    age = age_text(tier.now_ms - oldest.set_at_ms)
    text = f"{counted(tier.holds, 'hold')}, the oldest for {age}, of {of}"
    return Line("holds", Severity.OK, text, "sediment holds")


def _unfinished_line(tier: TierFacts) -> Line:
    """Describe copies and deletions that have not finished, first those that are stuck."""
    unfinished = counted(tier.unfinished, "copy or deletion", "copies and deletions")
    parts = [f"{unfinished} in progress"]
    if tier.stuck:
        parts = [f"{len(tier.stuck):,} of {unfinished} stuck"]
    parts += [
        f"{partition_text(each.topic_id_partition)} offset {each.start_offset} "
        f"{state_text(each.state.value)} for {age_text(each.age_ms)}"
        for each in tier.stuck[:_SHOWN]
    ]
    if tier.unread_partitions:
        parts.append(f"{counted(tier.unread_partitions, 'partition')} with more not read")
    severity = Severity.WARNING if tier.stuck else Severity.OK
    return Line("unfinished", severity, "; ".join(parts))


def _removal_line(tier: TierFacts) -> Line:
    if tier.oldest_mark_ms is None:
        return Line("removal", Severity.OK, "no partition is being deleted")
    age_ms = tier.now_ms - tier.oldest_mark_ms
    severity = Severity.WARNING if age_ms > _DAY_MS else Severity.OK
    text = f"{counted(tier.marked, 'partition')} being deleted, the first for {age_text(age_ms)}"
    return Line("removal", severity, text)


def _anomaly_line(tier: TierFacts) -> Line:
    """Describe what recent runs of reconcile and scrub found."""
    is_open = tier.anomalies[AnomalyKind.UNREFERENCED_COMPLETE]
    severity = Severity.WARNING if is_open else Severity.OK
    if any(tier.anomalies[kind] for kind in LOST):
        severity = Severity.CRITICAL
    counts = ", ".join(f"{count:,} {kind.value}" for kind, count in tier.anomalies.items() if count)
    if not counts and not tier.was_checked:
        return Line("anomalies", Severity.UNKNOWN, NEVER_LOOKED, "sediment reconcile")
    text = f"{counts or 'none'}{' and more' if tier.has_more_anomalies else ''}"
    return Line("anomalies", severity, text, "sediment anomalies" if counts else "")


def _sweep_line(tier: TierFacts) -> Line:
    """Describe the last sweeps, those first that did not end well."""
    sweeps = sorted(tier.sweeps, key=lambda each: each.outcome is RunOutcome.DONE)
    parts = [_sweep_text(each, tier.now_ms) for each in sweeps[:_SHOWN]]
    if len(sweeps) > _SHOWN:
        parts.append(f"and {len(sweeps) - _SHOWN} others")
    severity = Severity.WARNING if tier.open_sweeps else Severity.OK
    return Line("sweeps", severity, "; ".join(parts) or "none ran yet")


def _sweep_text(sweep: RecordedRun, now_ms: int) -> str:
    of = f" of {', '.join(sweep.topics[:_SHOWN])}" if sweep.topics else ""
    more = " ..." if len(sweep.topics) > _SHOWN else ""
    return (
        f"{sweep.kind.value.lower()}{of}{more}: {sweep.outcome.value.lower()} "
        f"{age_text(now_ms - sweep.ended_ms)} ago, deleted "
        f"{sized(sweep.counts.done_segments, sweep.counts.done_bytes)}"
    )


def _check_line(tier: TierFacts, kind: RunKind) -> Line:
    """Describe how long ago the topics were verified."""
    what, last, never = kind.value.lower(), tier.last.get(kind), tier.unverified[kind]
    if last is None and never:
        return Line(what, Severity.UNKNOWN, NEVER_LOOKED, f"sediment {what}")
    if last is None:
        return Line(what, Severity.OK, "nothing to verify")
    text = f"the oldest {age_text(tier.now_ms - last.ended_ms)} ago ({last.topics[0]})"
    more = f"; {counted(never, 'topic')} never as a whole" if never else ""
    return Line(what, Severity.OK, text + more)


def _unchecked_text(lag: CopyLag) -> str:
    return f"{counted(lag.unchecked_partitions, 'partition')} changed since the lag was counted"
