"""Show on one screen whether the tier is well: `sediment status`."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from services.api.operations import CHECKS, AnomalyKind
from services.cli.command import quantity
from services.cli.connections import Call, command_group, with_services
from services.common.quantities import DURATION_MS
from services.views.documents import Json, as_json, fields_as_json
from services.views.endpoints import Endpoint, Severity
from services.views.tier import (
    Line,
    disk_line,
    lag_line,
    read_status,
    service_lines,
    tier_lines,
)
from services.views.tier_facts import Bounds, TierFacts

app = command_group()

_BOUNDS = Bounds()


@app.command()
@with_services("rsm", "rlmm", "rlm")
def status(
    call: Call,
    stuck_after_ms: int = quantity(
        "--stuck-after",
        DURATION_MS,
        "A copy or deletion is stuck after this time.",
        _BOUNDS.stuck_ms,
    ),
    anomalies_ms: int = quantity(
        "--anomalies-within",
        DURATION_MS,
        "Count anomalies that a run saw since.",
        _BOUNDS.anomalies_ms,
    ),
) -> None:
    """Show on one screen whether the tier is well.

    \b
    Exit codes:
      0  nothing is wrong
      1  a warning: something needs attention
      2  critical: a service is away or not ready, data is damaged, missing or
         about to be lost before it is copied; or the command line is wrong
    """
    addresses = call.known_addresses("rsm", "rlmm", "rlm")
    with call.connect(addresses) as clients:
        endpoints = clients.probe()
        state = read_status(clients, endpoints, Bounds(stuck_after_ms, anomalies_ms))
    lines = [*service_lines(endpoints), *tier_lines(state)]
    stack = call.stack_of(target for _, target in addresses.pairs())
    if stack is not None:
        lines.append(disk_line(Path(stack.data_directory)))
    worst = max(Severity.OK, *(line.severity for line in lines))
    document = {
        "severity": worst.name,
        "services": [*map(_service_as_json, endpoints)],
        "copy_lags": [
            {"severity": lag_line(lag, state.now_ms).severity.name, **asdict(lag)}
            for lag in state.lags
        ],
        "tier": None if state.tier is None else _tier_as_json(state.tier),
        "lines": [line.as_json() for line in lines],
    }
    call.show(document, ("", ("what", "state", "text"), _rows(lines)))
    raise typer.Exit(int(worst))


def _rows(lines: Sequence[Line]) -> Iterator[tuple[str, str, str]]:
    for line in lines:
        next_step = f"; next: {line.next}" if line.next else ""
        yield line.what, line.severity.name.lower(), f"{line.text}{next_step}"


def _service_as_json(endpoint: Endpoint) -> Json:
    state = endpoint.state
    return {
        **fields_as_json(endpoint, "service", "address"),
        "severity": endpoint.severity.name,
        "version": state.version,
        "ready": state.is_ready,
        "problem": state.problem,
        "unready": state.unready,
        "notes": [note._asdict() for note in state.notes],
    }


def _tier_as_json(tier: TierFacts) -> Json:
    return {
        "topics": tier.topics,
        "partitions": tier.partitions,
        **asdict(tier.totals),
        "unfinished_segments": tier.unfinished,
        "unread_partitions": tier.unread_partitions,
        "stuck": as_json(tier.stuck),
        "topics_on_hold": sorted(tier.on_hold),
        "unconfirmed_topics": sorted(tier.unconfirmed),
        "holds": tier.holds,
        "oldest_hold": as_json(tier.oldest_hold),
        "deleting_partitions": tier.marked,
        "oldest_mark_ms": tier.oldest_mark_ms,
        "anomalies": {kind.value: tier.anomalies[kind] for kind in AnomalyKind},
        "has_more_anomalies": tier.has_more_anomalies,
        "verifications": {
            kind.value: {
                "oldest_ended_ms": None if (last := tier.last.get(kind)) is None else last.ended_ms,
                "oldest_topic": None if last is None else last.topics[0],
                "unverified_topics": tier.unverified[kind],
            }
            for kind in CHECKS
        },
        "sweeps": as_json(tier.sweeps),
        "maintained_ms": tier.maintained_ms,
    }
