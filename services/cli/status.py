"""Show on one screen whether the tier is well: `sediment status`."""

import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from services.api.errors import NotServedError, RemoteStorageError
from services.api.operations import AnomalyKind, VerificationKind
from services.api.remote_log_manager import CopyLag
from services.cli.connections import (
    Call,
    command_group,
    connected_rlm,
    connected_rlmm,
    with_services,
)
from services.cli.endpoints import known_addresses, probed
from services.cli.output import print_json, print_table
from services.views.documents import fields_as_json
from services.views.endpoints import Severity, is_ready
from services.views.tier import Line, Status, lines_of, sweep_as_json
from services.views.tier_facts import Bounds, TierFacts, lag_severity, tier_facts

app = command_group()

_HOUR_MS = 3_600_000
_TEXT_WIDTH = 48


@app.command()
@with_services("rsm", "rlmm", "rlm")
def status(
    call: Call,
    stuck_after_ms: Annotated[
        int, typer.Option(min=0, help="A copy or deletion is stuck after this time, ms.")
    ] = _HOUR_MS,
    anomalies_ms: Annotated[
        int, typer.Option(min=0, help="Count anomalies that a run saw since this time, ms.")
    ] = 8 * 24 * _HOUR_MS,
) -> None:
    """Show on one screen whether the tier is well.

    \b
    Exit codes:
      0  nothing is wrong
      1  a warning: something needs attention
      2  critical: a service is away or not ready, data is damaged, missing or
         about to be lost before it is copied; or the command line is wrong
    """
    addresses = known_addresses(call, "rsm", "rlmm", "rlm")
    endpoints = probed(addresses, call.data_dir)
    tier, lags, now_ms = None, list[CopyLag](), time.time_ns() // 1_000_000
    unread: list[Line] = []
    if is_ready(endpoints, "rlmm"):
        with connected_rlmm(addresses["rlmm"], call.data_dir) as metadata:
            try:
                tier = tier_facts(metadata, Bounds(stuck_after_ms, anomalies_ms))
            except RemoteStorageError as e:
                unread.append(_unread("tier", e))
    for endpoint in endpoints:
        if endpoint.service == "rlm" and endpoint.address and endpoint.severity is Severity.OK:
            with connected_rlm(endpoint.address, call.data_dir) as manager:
                try:
                    lags.append(manager.copy_lag())
                except RemoteStorageError as e:
                    unread.append(_unread("copying", e))
    found = Status(endpoints, tier, lags, now_ms)
    lines = [*lines_of(found), *unread]
    if call.is_json:
        print_json(_as_json(found, lines))
    else:
        print_table("Status", ("what", "state", ""), _rows(lines))
    raise typer.Exit(int(max(line.severity for line in lines)))


def _unread(what: str, error: RemoteStorageError) -> Line:
    """Describe a call that a ready service refused; a warning if its release does not have it."""
    is_older = isinstance(error, NotServedError)
    return Line(what, Severity.WARNING if is_older else Severity.CRITICAL, f"not read: {error}")


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
        "stuck": [*map(fields_as_json, tier.stuck)],
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
