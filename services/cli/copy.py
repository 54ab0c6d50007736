"""Copy segments into the own layout or out of it: `sediment copy`."""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import typer

from services.cli.command import option, quantity, toggle
from services.cli.connections import ONLY_TOPICS, Call, command_group, with_services
from services.cli.names import find_topic
from services.cli.output import EXIT_FAILED, WATCHED_S, CommandError, progress
from services.cli.reconcile import Rate, pace_of
from services.cli.store import store_settings
from services.common.quantities import DURATION_MS, counted
from services.rsm.factory import build_locations
from services.rsm.leaving import LocalTieredStorageDirectory
from services.rsm.mirror_copy import MirrorCopy, Mirrored
from services.views.documents import Json
from services.views.texts import size_text
from services.workflows.adoption import Adoption, delete_sources
from services.workflows.copy_segments import (
    PARALLEL,
    Copied,
    CopyPlan,
    CopyTarget,
    SegmentCopy,
)
from services.workflows.deletion import REPLACED_STAY_MS
from services.workflows.scrub import DEFAULT_RATE_BYTES_PER_S

app = command_group()

_COUNTS = ("copied", "copied_bytes", "present", "gone", "failed")


@app.command()
@with_services("rsm", "rlmm", has_data_dir=True)
def copy(
    call: Call,
    adopt: bool = toggle(
        "--adopt", "Copy the segments that another storage wrote into RSM's own layout."
    ),
    to: Path | None = option(
        "Copy all segments into this directory of Kafka's LocalTieredStorage.", metavar="DIRECTORY"
    ),
    mirror: bool = toggle(
        "--mirror",
        "Copy to the mirror of each location what it lacks, byte for byte, with RSM's settings in "
        "the environment (RSM_*) or those of the running `sediment up`.",
    ),
    topic: list[str] | None = ONLY_TOPICS,
    rate: Rate = DEFAULT_RATE_BYTES_PER_S,
    parallel: int = option(
        "Partitions that are copied side by side.", default=PARALLEL, min=1, max=64
    ),
    delete_source: int | None = option(
        "With --adopt: afterwards delete what adopted segments have in this location, "
        "which must not be read-only.",
        min=1,
        max=65_535,
        metavar="LOCATION",
    ),
    wait_ms: int = quantity(
        "--wait",
        DURATION_MS,
        "Before --delete-source deletes: readers may use earlier look-ups for so long.",
        REPLACED_STAY_MS,
    ),
) -> None:
    """Copy finished segments to another layout, and verify each.

    With --adopt a segment is read from the copy as soon as that was verified; what the other
    storage wrote stays, unless --delete-source is given. With --to nothing but the directory
    changes. With --mirror the stores are used directly, and nothing but the mirrors changes.
    Run it again to continue with what has no verified copy.

    \b
    Exit codes:
      3  a segment was not copied, or a source was not deleted (each is named),
         or a service failed; run the command again
    """
    if adopt + mirror + (to is not None) != 1:
        raise CommandError("give one of --adopt, --mirror and --to DIRECTORY")
    if mirror and topic:
        raise CommandError("--mirror copies all topics of a location")
    if to is not None and not to.is_dir():
        raise CommandError(f"--to: there is no directory {to}")
    if delete_source is not None and not adopt:
        raise CommandError("--delete-source goes with --adopt")
    run_id, not_deleted = uuid4().hex, list[str]()
    if mirror:
        raise typer.Exit(_copy_to_mirrors(call, run_id, rate, parallel))
    with call.tier_clients() as (store, _, metadata):
        found = [find_topic(metadata, text) for text in topic or []]
        plan = CopyPlan(run_id, {each.topic_id: each.name for each in found}, parallel)
        target: CopyTarget = Adoption(metadata, store, run_id)
        if to is not None:
            target = LocalTieredStorageDirectory(to)
        with progress() as show:
            done = SegmentCopy(
                metadata, store, target, plan, pace_of(rate), lambda done: show(_progress_of(done))
            ).run()
        deleted = 0
        if delete_source is not None:
            _wait(wait_ms / 1000)
            for error in delete_sources(metadata, store, delete_source, plan.topics):
                deleted += error is None
                not_deleted += [] if error is None else [str(error)]
    run = {
        "run_id": run_id,
        "target": "own" if to is None else str(to),
        "topics": sorted(plan.topics.values()),
        "rate_bytes_per_s": rate,
    }
    sources = None if delete_source is None else (deleted, not_deleted)
    raise typer.Exit(_show(call, run, [done], "Copied", ("copied and verified", "copied"), sources))


def _copy_to_mirrors(call: Call, run_id: str, rate: int, parallel: int) -> int:
    """Copy to the mirror of each location; return the exit code."""
    settings = store_settings(call)
    try:
        locations = build_locations(settings)
    except SystemExit as e:
        raise CommandError("; ".join(str(e).splitlines())) from e
    mirrored = [each for each in locations.all if each.mirrored is not None]
    if not mirrored:
        raise CommandError("RSM_LOCATIONS_FILE in the environment names no `mirror`; set it")
    acquire = pace_of(rate).acquire
    with progress() as show:
        runs = [
            MirrorCopy(
                each,
                acquire,
                parallel,
                lambda done: show(f"{counted(done.copied, 'segment')} copied"),
            ).run()
            for each in mirrored
        ]
    run = {"run_id": run_id, "target": "mirror", "topics": [], "rate_bytes_per_s": rate}
    return _show(call, run, runs, "Copied to mirrors", ("copied", "size"))


def _show(
    call: Call,
    run: Json,
    runs: Sequence[Copied] | Sequence[Mirrored],
    title: str,
    words: tuple[str, str],
    sources: tuple[int, list[str]] | None = None,
) -> int:
    """Print what was copied; return the exit code.

    Args:
        words: for how many segments were copied, and for their size.
        sources: how many sources were deleted, and why others were not; None: none were to be.
    """
    sums = {name: sum(getattr(each, name) for each in runs) for name in _COUNTS}
    reasons = [reason for each in runs for reason in each.reasons]
    deleted, not_deleted = sources or (0, [])
    rows = [
        (words[0], sums["copied"]),
        (words[1], size_text(sums["copied_bytes"])),
        ("copied before", sums["present"]),
        ("deleted meanwhile", sums["gone"]),
        ("not copied", sums["failed"]),
        *([] if sources is None else [("without a source", deleted)]),
    ]
    ends = {"reasons": reasons, "sources_deleted": deleted, "sources_left": not_deleted}
    call.show({**run, **sums, **ends}, (title, ("", ""), rows), lines=[*reasons, *not_deleted])
    return EXIT_FAILED if sums["failed"] or not_deleted else 0


def _wait(left_s: float) -> None:
    """Wait until no reader has a look-up from before the adoption, and say how long yet."""
    ends_s = time.monotonic() + left_s
    with progress(every_s=WATCHED_S) as show:
        while (left_s := ends_s - time.monotonic()) > 0:
            show(f"sources are deleted in {counted(math.ceil(left_s), 'second')}")
            time.sleep(min(left_s, 1.0))


def _progress_of(done: Copied) -> str:
    return f"{counted(done.copied, 'segment')} copied, {size_text(done.copied_bytes)}"
