"""Rebuild the metadata from the bucket: `sediment db rebuild` and `sediment db confirm-rebuild`."""

from collections.abc import Iterator, Mapping
from uuid import uuid4

import typer

from services.api.calls import MutationContext
from services.api.ids import uuid_to_text
from services.cli.command import option, toggle
from services.cli.connections import Call, Locations, with_services
from services.cli.output import EXIT_PARTIAL, WATCHED_S, CommandError, Table, progress
from services.common.quantities import counted
from services.views.texts import time_text
from services.workflows.deployment_state import (
    Head,
    KeptState,
    PutBack,
    read_kept,
    settle,
)
from services.workflows.other_topic import other_topic
from services.workflows.rebuild import HOLD, Rebuild, RebuildPlan
from services.workflows.rebuild_document import freeze_document, rebuild_document
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt

_SHOWN = 100
"""Differences in the table; JSON has all that the run keeps."""


@with_services("rsm", "rlmm")
def rebuild(
    call: Call,
    apply: bool = toggle("--apply", "Freeze all deletions and import what the metadata lacks."),
    location: Locations = None,
    topic: str = option("With --as: its name or id there.", default="", metavar="TOPIC"),
    as_name: str = option(
        "Bring a topic of another deployment in under this name, from one read-only "
        "location. Its objects are never deleted.",
        "--as",
        default="",
        metavar="NAME",
    ),
) -> None:
    """Rebuild the metadata from the manifests in the bucket.

    For an RLMM whose database is empty or restored from a backup. Without --apply it only reports
    the differences. With it no deletion begins until `sediment db confirm-rebuild`. Settings that
    `sediment db maintain --rsm` has kept in the bucket are put back. May be repeated at any time.

    \b
    Exit codes:
      1  something is damaged, refused, or only in the metadata; each is named
    """
    plan = RebuildPlan(uuid4().hex, apply, tuple(location or [0]), only_listed=bool(as_name))
    if topic and not as_name:
        raise CommandError("--topic goes with --as")
    if as_name and len(plan.locations) != 1:
        raise CommandError("--as takes one --location")
    with call.tier_clients() as (store, objects, metadata), progress(every_s=WATCHED_S) as show:
        stored = KeptState(None) if as_name else read_kept(objects)
        if as_name:
            objects = other_topic(objects, plan.locations[0], topic, as_name)
        done = Rebuild(
            metadata, store, objects, plan, lambda done: show(_progress_text(done))
        ).run()
        back = stored.put_settings_back(metadata, apply=apply)
    call.show(
        rebuild_document(plan, done, stored, back),
        *_tables(plan, done),
        lines=[
            *_lines(done),
            *([] if as_name else _lines_of_state(stored.head, back, stored.waiting)),
        ],
    )
    raise typer.Exit(EXIT_PARTIAL if done.needs_operator or back.refused else 0)


@with_services("rsm", "rlmm")
def confirm_rebuild(
    call: Call,
    reason: str = option("Why deletions may begin again; RLMM logs it.", default=...),
) -> None:
    """Let deletions begin again after a rebuild.

    Check the report of `sediment db rebuild` and the topics' settings first. Raises the log starts
    that the bucket keeps, ends the freeze, and marks the deleted partitions.

    \b
    Exit codes:
      1  a log start was refused, and deletions stay frozen; or a mark was
         refused, or the bucket's state cannot be read, and deletions begin again
    """
    with call.tier_clients() as (_, objects, metadata):
        stored = read_kept(objects)
        head, back = stored.head, stored.put_log_starts_back(metadata)
        is_complete = not back.refused
        ended = metadata.end_hold(HOLD, MutationContext(reason=reason)) if is_complete else None
        if ended is not None and head is not None:
            if not head.is_settled:
                stored.put_marks_back(metadata, back)
            settle(objects, head)
        back.refused += stored.unread
    lines = ["deletions were not frozen" if is_complete else "this rebuild is not confirmed"]
    if ended is not None:
        since = time_text(ended.set_at_ms)
        lines = [f"deletions begin again; {ended.actor} had frozen them at {since}"]
        if head is not None:
            marked = counted(back.marks, "partition")
            lines.append(f"{counted(back.log_starts, 'log start')} raised, {marked} marked")
    numbers = {"log_starts": back.log_starts, "marks": back.marks, "refused": back.refused}
    call.show(
        {"ended": None if ended is None else freeze_document(ended), **numbers},
        lines=[*lines, *_refusals(back)],
    )
    raise typer.Exit(EXIT_PARTIAL if back.refused else 0)


def _progress_text(done: Rebuilt) -> str:
    return f"{counted(done.segments, 'segment')} compared, {done.imported:,} imported"


def _tables(plan: RebuildPlan, done: Rebuilt) -> Iterator[Table]:
    rows = [
        ("segments in the bucket", f"{done.segments:,}"),
        ("same in bucket and metadata", f"{done.same:,}"),
        ("without a manifest", f"{done.incomplete:,}"),
        *((kind.value, f"{done.counts[kind]:,}") for kind in DifferenceKind),
        ("imported", f"{done.imported:,}"),
        ("finished", f"{done.finished:,}"),
    ]
    yield "Rebuilt" if plan.apply else "Rebuild (dry run)", ("what", "count"), rows
    if done.differences:
        columns = ("kind", "topic", "partition", "segment id", "offsets", "detail")
        yield "Differences", columns, map(_as_row, done.differences[:_SHOWN])


def _lines(done: Rebuilt) -> Iterator[str]:
    others = sum(done.counts.values()) - min(len(done.differences), _SHOWN)
    if others:
        yield f"and {others:,} more; -o json has up to {Rebuilt.MAX_DIFFERENCES:,}"
    if done.freeze is not None:
        yield (
            "no deletion begins until `sediment db confirm-rebuild --reason ...`; check this "
            "report and put the topics' settings first"
        )


def _refusals(back: PutBack) -> list[str]:
    return [f"refused: {text}" for text in back.refused]


def _lines_of_state(head: Head | None, back: PutBack, waiting: Mapping[str, int]) -> Iterator[str]:
    yield from _refusals(back)
    if head is None:
        yield (
            "the bucket keeps no settings (`sediment db maintain --rsm`): put them again, or "
            "nothing expires"
        )
        return
    at = time_text(head.kept_at_ms)
    yield (
        f"settings that differ from those kept at {at}: {counted(back.settings, 'topic')}; "
        f"{counted(back.holds, 'hold')} put back; "
        f"confirm-rebuild raises {counted(waiting['log_starts'], 'log start')} and marks "
        f"{counted(waiting['marks'], 'partition')}"
    )


def _as_row(each: Difference) -> tuple[object, ...]:
    end = "" if each.end_offset is None else each.end_offset
    topic, segment_id = each.topic or uuid_to_text(each.topic_id), uuid_to_text(each.segment_id)
    offsets = f"{each.start_offset}-{end}"
    return each.kind.value, topic, str(each.partition), segment_id, offsets, each.detail or "-"
