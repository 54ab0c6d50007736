"""Rebuild the metadata from the bucket: `sediment db rebuild` and `sediment db confirm-rebuild`."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated
from uuid import uuid4

import typer

from services.api.calls import MutationContext
from services.api.ids import uuid_to_text
from services.cli.connections import Call, Locations, with_services
from services.cli.output import EXIT_PARTIAL, print_json, print_table, say
from services.views.texts import time_text
from services.workflows.deployment_state import (
    Head,
    PutBack,
    put_log_starts_back,
    put_marks_back,
    settle,
)
from services.workflows.rebuild import Rebuild, RebuildPlan
from services.workflows.rebuild_document import freeze_document, read_kept, rebuild_document
from services.workflows.rebuild_report import Difference, DifferenceKind, Rebuilt

_PROGRESS_S = 5.0
_SHOWN = 100
"""Differences in the table; JSON has all that the run keeps."""


@with_services("rsm", "rlmm")
def rebuild(
    call: Call,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Freeze all deletions and import what the metadata lacks."),
    ] = False,
    location: Locations = None,
) -> None:
    """Rebuild the metadata from the manifests in the bucket.

    For an RLMM whose database is empty or restored from a backup. Without --apply it only reports
    the differences. With it no deletion begins until `sediment db confirm-rebuild`. Settings that
    `sediment db maintain --rsm` has kept in the bucket are put back. May be repeated at any time.

    \b
    Exit codes:
      1  something is damaged, refused, or only in the metadata; each is named
    """
    plan = RebuildPlan(uuid4().hex, apply, tuple(location or [0]))
    with call.tier_clients() as (store, objects, metadata):
        kept = read_kept(objects)
        done = Rebuild(metadata, store, objects, plan, _progress()).run()
        back = kept.put_settings_back(metadata, apply=apply)
    if call.is_json:
        print_json(rebuild_document(plan, done, kept, back))
    else:
        _print(plan, done)
        _print_kept(kept.head, back, kept.waiting)
    raise typer.Exit(EXIT_PARTIAL if done.needs_operator or back.refused else 0)


@with_services("rsm", "rlmm")
def confirm_rebuild(
    call: Call,
    reason: Annotated[str, typer.Option(help="Why deletions may begin again; RLMM logs it.")],
) -> None:
    """Let deletions begin again after a rebuild.

    Check the report of `sediment db rebuild` and the topics' settings first. Raises the log starts
    that the bucket keeps, ends the freeze, and marks the deleted partitions.

    \b
    Exit codes:
      1  a log start was refused, and deletions stay frozen; or a mark was refused,
         or the bucket's state cannot be read, and deletions begin again
    """
    with call.tier_clients() as (_, objects, metadata):
        kept = read_kept(objects)
        head, back = kept.head, put_log_starts_back(metadata, kept.topics)
        is_complete = not back.refused
        ended = metadata.confirm_rebuild(MutationContext(reason=reason)) if is_complete else None
        if ended is not None and head is not None:
            if not head.is_settled:
                put_marks_back(metadata, kept.topics, back)
            settle(objects, head)
        back.refused += kept.unread
    if call.is_json:
        freeze = None if ended is None else freeze_document(ended)
        counted = {"log_starts": back.log_starts, "marks": back.marks, "refused": back.refused}
        print_json({"ended": freeze, **counted})
    elif ended is None:
        say("deletions were not frozen" if is_complete else "this rebuild is not confirmed")
    else:
        since = time_text(ended.since_ms, "seconds")
        say(f"deletions begin again; {ended.actor} had frozen them at {since}")
        if head is not None:
            say(f"{back.log_starts:,} log starts raised, {back.marks:,} partitions marked")
    if not call.is_json:
        for text in back.refused:
            say(f"refused: {text}")
    raise typer.Exit(EXIT_PARTIAL if back.refused else 0)


def _progress() -> Callable[[Rebuilt], None]:
    """Return a function that prints a run's counts every _PROGRESS_S seconds."""
    last = time.monotonic()

    def show(done: Rebuilt) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_S:
            last = time.monotonic()
            say(f"{done.segments:,} segments compared, {done.imported:,} imported")

    return show


def _print(plan: RebuildPlan, done: Rebuilt) -> None:
    rows = [
        ("segments in the bucket", f"{done.segments:,}"),
        ("same in bucket and metadata", f"{done.same:,}"),
        ("without a manifest", f"{done.incomplete:,}"),
        *((kind.value, f"{done.counts[kind]:,}") for kind in DifferenceKind),
        ("imported", f"{done.imported:,}"),
        ("finished", f"{done.finished:,}"),
    ]
    print_table("Rebuilt" if plan.apply else "Rebuild (dry run)", ("what", "count"), rows)
    if done.differences:
        columns = ("kind", "topic", "partition", "segment id", "offsets", "detail")
        print_table("Differences", columns, map(_as_row, done.differences[:_SHOWN]))
    others = sum(done.counts.values()) - min(len(done.differences), _SHOWN)
    if others:
        say(f"and {others:,} more; -o json has up to {Rebuilt.MAX_DIFFERENCES:,}")
    if done.freeze is not None:
        say(
            "no deletion begins until `sediment db confirm-rebuild --reason ...`; check this "
            "report and put the topics' settings first"
        )


def _print_kept(head: Head | None, back: PutBack, waiting: Mapping[str, int]) -> None:
    for text in back.refused:
        say(f"refused: {text}")
    if head is None:
        say(
            "the bucket keeps no settings (`sediment db maintain --rsm`): put them again, or "
            "nothing expires"
        )
        return
    at = time_text(head.kept_at_ms, "seconds")
    say(
        f"settings of {back.settings:,} topics differ from those kept at {at}; confirm-rebuild "
        f"raises {waiting['log_starts']:,} log starts and marks {waiting['marks']:,} partitions"
    )


def _as_row(each: Difference) -> tuple[object, ...]:
    end = "" if each.end_offset is None else each.end_offset
    topic, segment_id = each.topic or uuid_to_text(each.topic_id), uuid_to_text(each.segment_id)
    offsets = f"{each.start_offset}-{end}"
    return each.kind.value, topic, str(each.partition), segment_id, offsets, each.detail or "-"
