"""Gather the health of the services, anomalies and the reports of sweeps."""

import time
from typing import Any

from services.api.errors import NotServedError, RemoteStorageError
from services.api.ids import uuid_to_text
from services.api.operations import AnomalyKind, AnomalyQuery
from services.api.remote_log_manager import CopyLag
from services.api.remote_log_metadata_manager import all_verifications
from services.console.access import Viewer
from services.console.tier import Tier
from services.console.topics import summaries
from services.views.endpoints import Severity, is_ready
from services.views.tier import Line, Status, anomaly_as_json, lines_of, sweep_as_json
from services.views.tier_facts import Bounds, TierFacts, tier_facts

Json = dict[str, Any]

HEALTH_AGE_S = 5.0
"""A reading lists all partitions and reads unfinished segments."""

PAGE = 200
_HOUR_MS = 3_600_000
_BOUNDS = Bounds(stuck_ms=_HOUR_MS, anomalies_ms=8 * 24 * _HOUR_MS)
_ANOMALIES = "RemoteLogMetadataManager/ListAnomalies"
_SWEEPS = "RemoteLogMetadataManager/ListSweepRuns"
_VERIFICATIONS = "RemoteLogMetadataManager/ListVerifications"
_LAG = "RemoteLogManager/GetCopyLag"


def health(tier: Tier, viewer: Viewer) -> Json:
    """Describe the services and, for those who may see all topics, the whole tier."""
    endpoints = tier.recent.get("endpoints", HEALTH_AGE_S, tier.probed)
    services = [
        {
            "service": each.service,
            "address": each.address,
            "severity": each.severity.name,
            "version": each.state.version,
            "text": each.text if each.address else f"no address of {each.service} was given",
        }
        for each in endpoints
    ]
    if not (viewer.may(_ANOMALIES) and viewer.may(_LAG)):
        return {"services": services, "lines": [], "note": "the rest needs auditor on all topics"}
    lines = tier.recent.get(
        "status", HEALTH_AGE_S, lambda: _lines(tier, is_ready(endpoints, "rlmm"))
    )
    shown = [
        {"what": line.what, "severity": line.severity.name, "text": line.text} for line in lines
    ]
    return {"services": services, "lines": shown, "note": ""}


def _lines(tier: Tier, has_rlmm: bool) -> list[Line]:
    """Describe tier and copying as `sediment status` does."""
    unread: list[Line] = []
    facts: TierFacts | None = None
    if has_rlmm:
        try:
            facts = tier_facts(tier.metadata, _BOUNDS)
        except RemoteStorageError as e:
            unread.append(_unread("tier", e))
    lags: list[CopyLag] = []
    for log in tier.logs.values():
        try:
            lags.append(log.copy_lag())
        except RemoteStorageError as e:
            unread.append(_unread("copying", e))
    return [*lines_of(Status((), facts, lags, time.time_ns() // 1_000_000)), *unread]


def _unread(what: str, error: RemoteStorageError) -> Line:
    is_older = isinstance(error, NotServedError)
    return Line(what, Severity.WARNING if is_older else Severity.CRITICAL, f"not read: {error}")


def list_anomalies(tier: Tier, viewer: Viewer, kind: AnomalyKind | None, token: str) -> Json:
    """Return one page of the anomalies, with the topics' names as far as they are known.

    Raises:
        PermissionDeniedError: the viewer may not see all topics.
    """
    viewer.require(_ANOMALIES)
    query = AnomalyQuery(() if kind is None else (kind,))
    page = tier.recent.get(
        ("anomalies", kind, token),
        1.0,
        lambda: tier.metadata.list_anomalies(query, page_size=PAGE, page_token=token),
    )
    names = {s.topic_id_partition.topic_id: s.topic_id_partition.topic for s in summaries(tier)}
    return {
        "anomalies": [
            {**anomaly_as_json(seen), "topic": names.get(seen.anomaly.topic_id)}
            for seen in page.anomalies
        ],
        "next": page.next_page_token,
        "kinds": [each.value for each in AnomalyKind],
    }


def list_sweeps(tier: Tier, viewer: Viewer) -> Json:
    """Return the last sweep of each kind and topics, and the verifications of topics.

    Raises:
        PermissionDeniedError: the viewer may not see all topics.
    """
    viewer.require(_SWEEPS)
    viewer.require(_VERIFICATIONS)
    sweeps = tier.recent.get("sweeps", 1.0, tier.metadata.list_sweep_runs)
    verified = tier.recent.get(
        "verifications", HEALTH_AGE_S, lambda: list(all_verifications(tier.metadata))
    )
    oldest_first = sorted(verified, key=lambda each: each.ended_ms)
    return {
        "sweeps": [sweep_as_json(each) for each in sweeps],
        "verifications": [
            {
                "topic": each.topic,
                "topic_id": uuid_to_text(each.verified.topic_id),
                "kind": each.kind.value,
                "parts": each.parts,
                "verified_parts": each.verified_parts,
                "ended_ms": each.ended_ms,
                "segments": each.verified.segments,
                "failed_segments": each.verified.failed_segments,
            }
            for each in oldest_first[:PAGE]
        ],
        "all_verifications": len(verified),
    }
