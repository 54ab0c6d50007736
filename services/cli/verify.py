"""Verify a partition, and show what was verified: `sediment verify` and `sediment verified`."""

import time
from collections.abc import Iterator, Sequence

import typer

from services.api.ids import TopicIdPartition
from services.api.operations import CHECKS, RecordedRun, RunKind
from services.api.remote_log_metadata_manager import all_tool_runs
from services.api.segment_objects import CURRENT_LOCATION
from services.cli.connections import (
    Call,
    Locations,
    TopicPartition,
    Topics,
    command_group,
    with_services,
)
from services.cli.names import chosen_topics, find_partition
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, Cells
from services.cli.reconcile import (
    Rate,
    damage_lines,
    finished_segments,
    pace_of,
    scrub_progress,
)
from services.cli.tables import Wide
from services.common.quantities import counted
from services.views.documents import Json, as_json, fields_as_json
from services.views.texts import age_text, partition_text, size_text
from services.views.topics import TopicFigures
from services.workflows.partition_scrub import PartitionScrubbed, scrub_partition

app = command_group()

_SHOWN = 10


@app.command()
@with_services("rsm", "rlmm")
def verify(
    call: Call, partition: TopicPartition, rate: Rate = 0, location: Locations = None
) -> None:
    """Read a partition's segments and verify their checksums.

    Only finished segments. Damaged and missing ones are recorded, as by a scrub;
    `sediment anomalies` lists them.

    \b
    Exit codes:
      1  a segment is damaged or missing
      3  no damage found, but something could not be read (it is named), or a
         service failed; run the command again
    """
    with call.tier_clients() as (store, objects, metadata):
        tp = find_partition(metadata, partition)
        locations, pace = location or [CURRENT_LOCATION], pace_of(rate)
        with scrub_progress(finished_segments(metadata, lambda each: each == tp)) as show:
            result = scrub_partition(tp, locations, metadata, store, objects, pace, show)
        damage = damage_lines(metadata, result.run_id) if result.has_damage else []
    table = (partition_text(tp), ("", ""), _rows(result))
    call.show(_as_json(tp, result), table, lines=[*_lines(result), *damage])
    if result.has_damage:
        raise typer.Exit(EXIT_PARTIAL)
    raise typer.Exit(0 if result.is_complete else EXIT_FAILED)


def _as_json(tp: TopicIdPartition, result: PartitionScrubbed) -> Json:
    done = result.scrubbed
    return {
        **fields_as_json(tp),
        **fields_as_json(done, "segments", "verified", "damaged", "unchecked"),
        "deleted_meanwhile": done.gone,
        "missing_start_offsets": list(result.missing),
        "elsewhere_start_offsets": list(result.elsewhere),
        "read_bytes": done.read_bytes,
        "reasons": done.reasons,
    }


def _rows(result: PartitionScrubbed) -> list[tuple[object, ...]]:
    done = result.scrubbed
    return [
        ("segments", done.segments),
        ("verified", done.verified),
        ("damaged", done.damaged),
        ("missing", len(result.missing)),
        ("not checked", done.unchecked),
        ("in other locations", len(result.elsewhere)),
        ("deleted meanwhile", done.gone),
        ("read", size_text(done.read_bytes)),
    ]


def _lines(result: PartitionScrubbed) -> Iterator[str]:
    yield from result.scrubbed.reasons
    if result.missing:
        yield f"no objects of the segments at {_offsets(result.missing)}"
    if result.elsewhere:
        yield f"--location was not that of the segments at {_offsets(result.elsewhere)}"


def _offsets(offsets: Sequence[int]) -> str:
    others = len(offsets) - _SHOWN
    shown = ", ".join(map(str, offsets[:_SHOWN]))
    return f"{shown} and {counted(others, 'other')}" if others > 0 else shown


@app.command()
@with_services("rlmm", limit="--limit")
def verified(call: Call, topics: Topics = None) -> None:
    """Show what was verified of each topic, and how long ago.

    A run of reconcile or scrub is recorded when it ends. Parts of a scrub
    count together: the age is that of the oldest part.
    """
    with call.rlmm_client() as manager:
        chosen = chosen_topics(manager, topics)
        last = {(each.counts.topic_id, each.kind): each for each in all_tool_runs(manager)}
    now_ms = time.time_ns() // 1_000_000
    call.show_each(
        [(each, kind, last.get((each.topic_id, kind))) for each in chosen for kind in CHECKS],
        lambda each: _verified_as_json(*each),
        "topics",
        lambda each: _verified_as_row(*each, now_ms),
    )


def _verified_as_json(topic: TopicFigures, kind: RunKind, last: RecordedRun | None) -> Json:
    totals = fields_as_json(topic.totals, "finished_segments", "finished_bytes")
    return {**topic.as_json(), "kind": kind.value, **totals, "last": as_json(last)}


def _verified_as_row(
    topic: TopicFigures, kind: RunKind, last: RecordedRun | None, now_ms: int
) -> Cells:
    name, check, of = topic.name, kind.value.lower(), topic.totals.finished_segments
    if last is None:
        return {
            "topic": name,
            "check": check,
            "age": "never",
            "verified": f"0/{of:,}",
            "failed": 0,
            Wide("parts"): "-",
            Wide("size"): "-",
        }
    return {
        "topic": name,
        "check": check,
        "age": age_text(now_ms - last.ended_ms),
        "verified": f"{last.counts.done_segments:,}/{of:,}",
        "failed": last.counts.failed_segments,
        Wide("parts"): f"{last.ended_parts}/{last.parts}",
        Wide("size"): size_text(last.counts.done_bytes),
    }
