"""Import Kafka's own metadata topic into RLMM: `sediment metadata import`."""

import signal
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event
from uuid import uuid4

import typer

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import uuid_to_text
from services.cli.command import option, toggle
from services.cli.connections import Call, with_services
from services.cli.metadata_source import KafkaSource
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, WATCHED_S, CommandError, progress, say
from services.common.quantities import counted
from services.interop.metadata_fold import Drop, UnreadableRecordError
from services.interop.metadata_import import ImportPlan, ImportReport, MetadataImport
from services.interop.metadata_topic import METADATA_TOPIC
from services.views.documents import Json, fields_as_json

BEHIND_S = 1.0
"""Between two reads of the live topic."""
_REST_S = 10.0
_NAMED = 10

BOOTSTRAP_SERVER: str = option(
    "A broker of the cluster.", default=..., metavar="HOST:PORT", show_default=False
)
TOPICS: list[str] | None = option("Only of this topic; may be repeated.", metavar="TOPIC")
TOPIC_NAME: str = option("The topic of the metadata.", default=METADATA_TOPIC)
CONFIG: Path | None = option(
    "Properties of the client, as for Kafka's own tools: security.protocol, ...", metavar="FILE"
)


@with_services("rlmm")
def import_metadata(
    call: Call,
    bootstrap_server: str = BOOTSTRAP_SERVER,
    location: int = option(
        "The location that has the objects, as RSM knows it.", default=..., metavar="N"
    ),
    topic: list[str] | None = TOPICS,
    topic_name: str = TOPIC_NAME,
    config: Path | None = CONFIG,
    dry_run: bool = toggle("--dry-run", "Change nothing; report."),
    follow: bool = toggle("--follow", "Stay behind the live topic until Ctrl-C or SIGTERM."),
    switch: bool = toggle(
        "--switch",
        "Follow while the brokers are switched: begin only if they copy nothing, and end "
        f"well only if the topic then rests for {_REST_S:.0f} s.",
    ),
    skip_unknown: bool = toggle("--skip-unknown", "Only count records of a later version."),
    restart: bool = toggle("--restart", "Start over if the stored position is of another topic."),
) -> None:
    """Import the metadata of Kafka's own RemoteLogMetadataManager.

    Resumes where it ended. Until it has ended no retention runs on the topics: then the log starts
    of the brokers are set. What is dropped is counted, and the first ones are named. A record that
    cannot be read ends it; what was before it is imported.

    \b
    Exit codes:
      1  something was dropped or could not be read
      3  a service or the cluster is away; with --switch: the brokers copy, or
         the topic does not rest
    """
    plan = ImportPlan(
        location, tuple(topic or ()), not dry_run, skip_unknown, restart, f"import-{uuid4().hex}"
    )
    follow = follow or switch
    stop = stopped_by_signals() if follow else Event()
    source = KafkaSource(bootstrap_server, topic_name, config)
    try:
        with call.rlmm_client() as rlmm, progress(every_s=WATCHED_S) as show:
            importing = MetadataImport(rlmm, source, plan, lambda done: show(_text(done)))
            if switch:
                _require_nothing_is_copied(source, plan.topics)
            importing.begin()
            importing.run()
            if follow:
                _follow(importing, stop, show)
            if switch:
                _require_rest(importing)
            report = importing.finish()
    except UnreadableRecordError as e:
        hint = "" if importing.report.records else f"; is {topic_name} a metadata topic?"
        raise CommandError(f"{e}{hint}", EXIT_PARTIAL) from e
    finally:
        source.close()
    call.show(_as_json(source, report), *_tables(report), lines=_lines(report))
    for each in report.examples:
        if not call.is_json:
            say(f"partition {each.partition}, offset {each.offset}: {each.why.value}: {each.what}")
    raise typer.Exit(EXIT_PARTIAL if report.dropped else 0)


def stopped_by_signals() -> Event:
    stop = Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stop.set())
    return stop


def _require_nothing_is_copied(source: KafkaSource, topics: Collection[str]) -> None:
    """Check that brokers of both kinds may lead in turn: a copy of one is unknown to the other."""
    copying = sorted(source.copying_topics(topics))
    if copying:
        some = ", ".join(copying[:_NAMED]) + (", ..." if len(copying) > _NAMED else "")
        raise CommandError(
            f"copying is not disabled on {counted(len(copying), 'topic')}: {some}; set "
            "remote.log.copy.disable=true, local.retention.ms=-2, local.retention.bytes=-2 there",
            EXIT_FAILED,
        )


def _follow(importing: MetadataImport, stop: Event, show: Callable[[str], None]) -> None:
    """Import what comes, until a signal; a cluster or RLMM that is away is asked again."""
    is_away = False
    while not stop.wait(BEHIND_S):
        try:
            if is_away:
                importing.begin()
            show(_text(importing.run()))
            is_away = False
        except (CommandError, RetriableRemoteStorageError) as e:
            is_away = True
            show(f"asked again: {e}")
    if is_away:
        importing.begin()


def _require_rest(importing: MetadataImport) -> None:
    """Check that no broker writes the topic any more: its ends are the positions, and stay so."""
    before = importing.run().records
    Event().wait(_REST_S)
    since = importing.run().records - before
    if since:
        raise CommandError(
            f"{counted(since, 'record')} came in the last {_REST_S:.0f} s: a broker still has its "
            "old classes, or copies; the holds stay: run it again",
            EXIT_FAILED,
        )
    say(f"the metadata topic has rested for {_REST_S:.0f} s, and all of it is imported")


def _text(done: ImportReport) -> str:
    changed = done.imported.imported + done.imported.moved
    return f"{counted(done.records, 'record')} read, {changed:,} changes imported, lag {done.lag:,}"


def _tables(done: ImportReport) -> list[tuple[str, tuple[str, ...], list[tuple[str, str]]]]:
    rows = [(why.value, f"{done.dropped[why]:,}") for why in Drop if done.dropped[why]]
    return [("dropped", ("what", "records"), rows)] if rows else []


def _lines(done: ImportReport) -> list[str]:
    of = done.imported
    return [
        f"{counted(done.records, 'record')}: {counted(of.imported, 'segment')} imported, "
        f"{of.moved:,} moved, {of.repeated:,} repeated, {sum(done.dropped.values()):,} dropped, "
        f"{done.not_selected:,} of other topics",
        f"{counted(done.log_starts, 'log start')} set, lag {done.lag:,}",
    ]


def _as_json(source: KafkaSource, done: ImportReport) -> Json:
    of = done.imported
    return {
        "cluster_id": source.cluster_id,
        "metadata_topic_id": uuid_to_text(source.topic_id),
        "records": done.records,
        **fields_as_json(of, "imported", "moved", "repeated"),
        "not_selected": done.not_selected,
        "dropped": {why.name: done.dropped[why] for why in Drop},
        "examples": [
            {"why": each.why.name, **fields_as_json(each, "partition", "offset", "what")}
            for each in done.examples
        ],
        "log_starts": done.log_starts,
        "lag": done.lag,
    }
