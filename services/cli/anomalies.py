"""`sediment anomalies`: where metadata and bucket disagree."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from services.api.anomalies import AnomalyKind, AnomalyQuery, SeenAnomaly, all_anomalies
from services.api.errors import InvalidRequestError
from services.api.ids import uuid_from_text, uuid_to_text
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.cli.connections import connected_rlmm
from services.cli.failures import CommandError
from services.cli.output import Format, print_json, print_table
from services.cli.topics import find_topic


def run(
    kinds: Sequence[str], topic: str, rlmm: str | None, data_dir: Path | None, output: Format
) -> None:
    wanted = tuple(_kind(kind) for kind in kinds)
    with connected_rlmm(rlmm, data_dir) as manager:
        topic_id = _topic_id(manager, topic) if topic else None
        found = all_anomalies(manager, AnomalyQuery(wanted, topic_id))
        if output is Format.JSON:
            for seen in found:
                print_json(_as_json(seen))
            return
        columns = ("kind", "topic id", "partition", "segment id", "object", "detail")
        seen_columns = ("first seen", "last seen", "times", "last run")
        print_table("Anomalies", (*columns, *seen_columns), map(_as_row, found))


def _kind(text: str) -> AnomalyKind:
    try:
        return AnomalyKind(text.upper())
    except ValueError:
        known = ", ".join(kind.value for kind in AnomalyKind)
        raise CommandError(f"--kind: {text!r} is none of {known}") from None


def _topic_id(manager: RemoteLogMetadataManager, text: str) -> UUID:
    """Of a topic that is known, by its name; of any, by its id."""
    try:
        return uuid_from_text(text, "--topic")
    except InvalidRequestError:
        return find_topic(manager, text).topic_id


def _as_json(seen: SeenAnomaly) -> dict[str, object]:
    anomaly = seen.anomaly
    return {
        "kind": anomaly.kind.value,
        "topic_id": uuid_to_text(anomaly.topic_id),
        "partition": anomaly.partition,
        "segment_id": uuid_to_text(anomaly.segment_id),
        "object_key": anomaly.object_key,
        "detail": anomaly.detail,
        "first_seen_ms": seen.first_seen_ms,
        "last_seen_ms": seen.last_seen_ms,
        "times_seen": seen.times_seen,
        "run_id": seen.run_id,
    }


def _as_row(seen: SeenAnomaly) -> tuple[object, ...]:
    anomaly = seen.anomaly
    return (
        anomaly.kind.value,
        uuid_to_text(anomaly.topic_id),
        anomaly.partition,
        uuid_to_text(anomaly.segment_id),
        anomaly.object_key or "-",
        anomaly.detail or "-",
        _time_text(seen.first_seen_ms),
        _time_text(seen.last_seen_ms),
        seen.times_seen,
        seen.run_id,
    )


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
