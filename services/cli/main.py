"""`sediment`: the commands and their options; what each does is in the module of its name."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Locations,
    Rlm,
    Rlmm,
    Rsm,
    Topic,
    TopicPartition,
)
from services.cli.db import db
from services.cli.output import Format
from services.cli.partitions import partitions
from services.cli.store import store
from services.cli.sweep import sweep

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its help would import rich and a Markdown parser, 0.2 s of nothing
    help="Kafka tiered storage as services: ship segments, look at the tier, read it.",
)

app.add_typer(db, name="db")

topics = typer.Typer(no_args_is_help=True, help="What is set for topics, and their end.")
app.add_typer(topics, name="topics")

app.add_typer(partitions, name="partitions")

app.add_typer(store, name="store")

app.add_typer(sweep, name="sweep")

LogDirs = Annotated[
    list[Path],
    typer.Argument(metavar="LOG_DIR...", help="Kafka log directories: the broker's log.dirs."),
]


@app.command()
def up(
    log_dir: Annotated[
        list[Path] | None,
        typer.Option(help="A Kafka log directory that RLM ships and serves; may be repeated."),
    ] = None,
    data_dir: DataDir = None,
    fresh: Annotated[bool, typer.Option(help="Forget what an earlier run stored.")] = False,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Run PostgreSQL, an S3 server and the services right here.

    In the foreground, until Ctrl-C or SIGTERM. The data is kept, in a directory that was new or
    empty when it was first used; any other is left as it is, with --fresh too.
    """
    from services.cli.up import run

    run(log_dir or [], data_dir, fresh, output)


@app.command()
def ship(
    log_dirs: LogDirs,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    retry_for_s: Annotated[
        float,
        typer.Option(min=0, help="How long to try again while a service is away, seconds."),
    ] = 60.0,
    copy_lease_ms: Annotated[
        int,
        typer.Option(
            min=1_000,
            max=3_600_000,
            help="How long the next run waits for what this one was killed at, ms.",
        ),
    ] = 30_000,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Copy every rolled segment that is not in the tier yet, once.

    Exit code 0: all of them are there. 1: some are held back, or were found to be lost before they
    could be copied, or one of several log directories cannot be used, and named; what was lost is
    recorded and a known gap from then on. 2: no log directory can be used, or one is named twice.
    3: a service could not be reached in time; run it again. 130, 143: interrupted; run it again.
    """
    from services.cli.ship import run

    raise typer.Exit(run(log_dirs, rsm, rlmm, data_dir, retry_for_s, copy_lease_ms, output))


@app.command()
def segments(
    topic_partition: TopicPartition,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show a partition's segments in the tier, in any state."""
    from services.cli.segments import list_segments as run

    run(topic_partition, rlmm, data_dir, output)


@app.command()
def events(
    topic_partition: TopicPartition,
    segment: Annotated[
        str, typer.Option(metavar="ID", help="Only the events of this segment.")
    ] = "",
    plan: Annotated[str, typer.Option(metavar="ID", help="Only those of this sweep.")] = "",
    after_revision: Annotated[int, typer.Option(min=0, help="Only later ones.")] = 0,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show what was done to a partition, by whom and why.

    Also of a partition that was deleted; say TOPIC_ID:orders-0 then.
    """
    from services.cli.segments import list_events as run

    run(topic_partition, segment, plan, after_revision, rlmm, data_dir, output)


@app.command()
def anomalies(
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only of this kind, for example ORPHAN_OBJECTS; may be repeated."),
    ] = None,
    topic: Annotated[
        str, typer.Option(metavar="TOPIC", help="Only of this topic: its name or its id.")
    ] = "",
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show where metadata and bucket disagree, as found by runs.

    The ones first seen first. A topic that RLMM does not know, as of an orphan, is named by its id.
    """
    from services.cli.reconcile import list_anomalies as run

    run(kind or [], topic, rlmm, data_dir, output)


@app.command()
def reconcile(
    delete: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Delete orphans and end uploads that an earlier run has seen too, a grace period "
            "ago. Without it they are reported only.",
        ),
    ] = False,
    grace_ms: Annotated[
        int, typer.Option(min=0, help="What is younger than this is left alone, ms.")
    ] = 86_400_000,
    location: Locations = None,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Find where stores and metadata disagree.

    `sediment anomalies` lists what was found. Nothing is deleted on one observation, and a complete
    copy that no metadata names never: a rebuild can take it over.

    Exit code 0: nothing is amiss but what this run put right or a later one will. 1: objects are
    missing, complete copies have no metadata, or something could not be deleted. 3: a service
    failed; run it again.
    """
    from services.cli.reconcile import reconcile as run

    raise typer.Exit(run(delete, grace_ms, location or [0], rsm, rlmm, data_dir, output))


@app.command()
def scrub(
    rate: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BYTES_PER_S",
            help="Read no faster than this, bytes/s; 0: as fast as the store is.",
        ),
    ] = 32 * 1024 * 1024,
    part: Annotated[
        str,
        typer.Option(
            metavar="I/N",
            help="Only the I-th of N parts of about the same size; a segment is in the same part "
            "each time.",
        ),
    ] = "1/1",
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this topic, for example orders; TOPIC_ID:orders where names recur. May be "
            "repeated."
        ),
    ] = None,
    location: Locations = None,
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Read finished segments through and verify their digests.

    `sediment anomalies` lists what is damaged or missing. Nothing else is changed.

    Exit code 0: all of it is as it was copied. 1: something is damaged or missing. 2: it was asked
    for wrongly. 3: nothing was found amiss, but something could not be read, and is named, or a
    service failed; run it again.
    """
    from services.cli.reconcile import ScrubOptions
    from services.cli.reconcile import scrub as run

    options = ScrubOptions(part, topic or [], location or [0])
    raise typer.Exit(run(options, rate, rsm, rlmm, data_dir, output))


@app.command()
def fetch(
    topic_partition: TopicPartition,
    offset: Annotated[int, typer.Option(min=0, help="The first offset to print.")],
    max_records: Annotated[int, typer.Option(min=1, help="Print at most so many.")] = 10,
    rlm: Rlm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Print records, as a console consumer, wherever they lie."""
    from services.cli.fetch import run

    run(topic_partition, offset, max_records, rlm, rlmm, data_dir, output)


@app.command()
def retention(
    topic_partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC-PARTITION]...",
            help="For example orders-0; TOPIC_ID:orders-0 where names recur. None: all.",
        ),
    ] = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show what retention would delete now; changes nothing.

    By the leader's latest report, whose age is shown. Exit code 0: shown. 2: a partition is not
    known. 3: RLMM could not be reached, or a partition changes faster than it can be read.
    """
    from services.cli.retention import run

    run(topic_partitions or [], rlmm, data_dir, output)


@app.command()
def explain(
    topic_partition: TopicPartition,
    segment: Annotated[
        str,
        typer.Argument(
            metavar="[SEGMENT]",
            show_default=False,
            help="Its id; behind -- where it begins with a dash. None: the partition.",
        ),
    ] = "",
    offset: Annotated[
        int | None, typer.Option(min=0, help="What holds, or held, this offset.")
    ] = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show why a segment stays, when it goes, why it went.

    By the rules of `sediment retention`, and the audit trail; changes nothing. Of a partition that
    was removed say TOPIC_ID:orders-0. Exit code 0: shown. 2: the partition, the segment or the
    offset is not known. 3: RLMM could not be reached, or a partition changes faster than it can be
    read.
    """
    from services.cli.explain import run

    run(topic_partition, segment, offset, rlmm, data_dir, output)


@topics.command("list")
def topics_list(
    rlmm: Rlmm = None, data_dir: DataDir = None, output: JsonOrTable = Format.TABLE
) -> None:
    """Show the topics that the tier knows, and what is set for them."""
    from services.cli.topics import list_topics

    list_topics(rlmm, data_dir, output)


@topics.command("show")
def topics_show(
    name: Topic,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Show what is set for a topic."""
    from services.cli.topics import show_topic

    show_topic(name, rlmm, data_dir, output)


@topics.command("set")
def topics_set(
    name: Topic,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="For example retention.ms=604800000."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Forget a setting; may be repeated.")
    ] = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Change some of a topic's settings; the others stay.

    Exit code 0: stored. 2: an unknown topic or setting, a bad value, settings that contradict each
    other; nothing was changed. 3: RLMM could not be reached.
    """
    from services.cli.topics import set_topic

    set_topic(name, settings or [], unset or [], rlmm, data_dir, output)


@topics.command("delete")
def topics_delete(
    name: Topic,
    yes: Annotated[bool, typer.Option("--yes", help="Really do it.")] = False,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Mark all partitions of a topic for deletion.

    Nothing can be added to them from then on. Every RLM removes what they have, and all that is
    known of them, once they have been marked for RLM_DELETION_GRACE_MS (an hour); or
    `sediment sweep removal --apply` does. Until then `sediment partitions undelete` takes it back.
    Safe to repeat.
    """
    from services.cli.topics import delete_topic

    delete_topic(name, yes, rlmm, data_dir, output)


def main() -> None:
    """The console script."""
    from services.cli.output import reported

    with reported():
        app()
