"""Export RLMM's metadata to Kafka's own metadata topic: `sediment metadata export`."""

from dataclasses import asdict
from pathlib import Path
from threading import Event

from services.api.ids import uuid_to_text
from services.cli.command import option, toggle
from services.cli.connections import Call, with_services
from services.cli.metadata_import import (
    BEHIND_S,
    BOOTSTRAP_SERVER,
    CONFIG,
    TOPIC_NAME,
    TOPICS,
    stopped_by_signals,
)
from services.cli.metadata_source import KafkaSource
from services.cli.output import EXIT_PARTIAL, WATCHED_S, CommandError, progress
from services.interop.metadata_export import ExportPlan, ExportReport, MetadataExport
from services.interop.metadata_fold import UnreadableRecordError


@with_services("rlmm")
def export_metadata(
    call: Call,
    bootstrap_server: str = BOOTSTRAP_SERVER,
    location: int | None = option(
        "Only segments of this location.", metavar="N", show_default=False
    ),
    topic: list[str] | None = TOPICS,
    topic_name: str = TOPIC_NAME,
    config: Path | None = CONFIG,
    follow: bool = toggle("--follow", "Write later changes until Ctrl-C or SIGTERM."),
    keyed: bool = toggle("--keyed", "With keys and tombstones, for a compacted topic (KIP-1266)."),
) -> None:
    """Write the metadata for Kafka's own RemoteLogMetadataManager.

    Into a topic that exists and that no broker writes meanwhile. It is read first, and only what it
    lacks is written: run it again at any time. Imported segments get back their own custom
    metadata.
    """
    stop = stopped_by_signals() if follow else Event()
    target = KafkaSource(bootstrap_server, topic_name, config)
    try:
        with call.rlmm_client() as rlmm, progress(every_s=WATCHED_S) as show:
            plan = ExportPlan(tuple(topic or ()), location, keyed)
            exporting = MetadataExport(rlmm, target, plan)
            exporting.begin()
            report = exporting.run()
            while follow and not stop.wait(BEHIND_S):
                report = exporting.run()
                show(_text(report))
    except UnreadableRecordError as e:
        raise CommandError(f"{e}; is {topic_name} a metadata topic?", EXIT_PARTIAL) from e
    finally:
        target.close()
    ids = {"cluster_id": target.cluster_id, "metadata_topic_id": uuid_to_text(target.topic_id)}
    call.show({**ids, **asdict(report)}, lines=[_text(report)])


def _text(done: ExportReport) -> str:
    return (
        f"{done.added:,} segments added, {done.moved:,} moved, {done.partition_deletes:,} "
        f"deletions of partitions, {done.tombstones:,} tombstones"
    )
