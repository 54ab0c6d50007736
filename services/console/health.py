"""Gather the health of the services, anomalies and the reports of sweeps."""

from typing import Any

from services.api.operations import AnomalyKind, AnomalyQuery
from services.api.remote_log_metadata_manager import all_tool_runs
from services.console.access import Viewer
from services.console.tier import Tier
from services.console.topics import summaries
from services.views.documents import anomaly_as_json, as_json
from services.views.tier import read_status, tier_lines
from services.views.tier_facts import Bounds, sweeps_of

Json = dict[str, Any]

HEALTH_AGE_S = 5.0
"""A reading lists all partitions and reads unfinished segments."""

PAGE = 200
_ANOMALIES = "RemoteLogMetadataManager/ListAnomalies"
_RUNS = "RemoteLogMetadataManager/ListToolRuns"
_LAG = "RemoteLogManager/GetCopyLag"


def health(tier: Tier, viewer: Viewer) -> Json:
    """Describe the services and, for those who may see all topics, the whole tier."""
    endpoints = tier.recent.get("endpoints", HEALTH_AGE_S, tier.clients.probe)
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
    status = tier.recent.get(
        "status", HEALTH_AGE_S, lambda: read_status(tier.clients, endpoints, Bounds())
    )
    lines = [line.as_json() for line in tier_lines(status)]
    return {"services": services, "lines": lines, "note": ""}


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
            {**anomaly_as_json(each), "topic": names.get(each.anomaly.topic_id)}
            for each in page.anomalies
        ],
        "next": page.next_page_token,
        "kinds": [each.value for each in AnomalyKind],
    }


def list_sweeps(tier: Tier, viewer: Viewer) -> Json:
    """Return the last sweep of each kind and topics, and the last checks of topics.

    Raises:
        PermissionDeniedError: the viewer may not see all topics.
    """
    viewer.require(_RUNS)
    runs = tier.recent.get("runs", 1.0, lambda: list(all_tool_runs(tier.metadata)))
    checks = [each for each in runs if each.counts.topic_id is not None]
    oldest_first = sorted(checks, key=lambda each: each.ended_ms)
    return {
        "sweeps": as_json(sweeps_of(runs)),
        "checks": as_json(oldest_first[:PAGE]),
        "all_checks": len(checks),
    }
