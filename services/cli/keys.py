"""Show which keys of RSM's ring segments need, and rewrap data keys: `sediment keys`."""

from collections.abc import Iterator

import typer

from services.cli.command import ListGroup, option
from services.cli.connections import ONLY_TOPICS, Call, command_group, with_services
from services.cli.names import find_topic
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, progress
from services.common.quantities import counted
from services.views.documents import Json
from services.workflows.rewrap import KeyRun, Rewrapped

app = command_group("Show which keys of RSM's ring are in use, and rewrap data keys.", ListGroup)


@app.command("list")
@with_services("rsm", "rlmm")
def list_keys(call: Call, topic: list[str] | None = ONLY_TOPICS) -> None:
    """Show the ring's keys, and how many segments need each.

    Reads the manifest of every finished segment, and unwraps its data key. Without a ring it
    shows which keys are needed. `list` may be left out.

    \b
    Exit codes:
      1  the ring cannot unwrap a key that is in use, or has a problem itself
      3  a manifest could not be read (it is named)
    """
    with call.tier_clients() as (_, objects, metadata), progress() as show:
        topics = frozenset(find_topic(metadata, text).topic_id for text in topic or [])
        run = KeyRun(metadata, objects, topics, on_progress=lambda d: show(_progress(d)))
        done = run.look()
    columns = ("location", "key", "segments", "in the ring")
    lines = [done.ring.problem, *done.problems.values(), *done.reasons]
    call.show(
        {**_as_json(done), "gone": done.gone, "unread": done.failed, "reasons": done.reasons},
        (f"Keys, current: {done.ring.current or 'RSM has no ring'}", columns, _rows(done)),
        lines=list(filter(None, lines)),
    )
    if done.problems or done.ring.problem:
        raise typer.Exit(EXIT_PARTIAL)
    raise typer.Exit(EXIT_FAILED if done.failed else 0)


@app.command()
@with_services("rsm", "rlmm")
def rewrap(
    call: Call,
    topic: list[str] | None = ONLY_TOPICS,
    from_key: str = option(
        "Only segments that need this key. Default: all that need another than the current one.",
        "--from",
        default="",
        metavar="ID",
    ),
) -> None:
    """Wrap the data keys of segments under the ring's current key.

    Touches no byte of a segment, only the last line of its manifest. Also seals manifests from
    before the ring. Run it again to continue: topics that it has done are skipped.

    \b
    Exit codes:
      3  a segment was not rewrapped (it is named), or a service failed; run the
         command again
    """
    with call.tier_clients() as (_, objects, metadata), progress() as show:
        topics = frozenset(find_topic(metadata, text).topic_id for text in topic or [])
        done = KeyRun(
            metadata, objects, topics, from_key, on_progress=lambda d: show(_progress(d))
        ).rewrap()
    rows = [
        ("segments", done.segments),
        ("rewrapped or sealed", done.changed),
        ("deleted meanwhile", done.gone),
        ("failed", done.failed),
        ("topics done before", done.topics_before),
    ]
    document = {
        **_as_json(done),
        "run_id": done.run_id,
        "segments": done.segments,
        "changed": done.changed,
        "gone": done.gone,
        "failed": done.failed,
        "topics_before": done.topics_before,
        "reasons": done.reasons,
    }
    table = (f"Rewrapped under {done.ring.current}", ("", ""), rows)
    call.show(document, table, lines=list(filter(None, [done.ring.problem, *done.reasons])))
    raise typer.Exit(EXIT_FAILED if done.failed else 0)


def _as_json(done: Rewrapped) -> Json:
    ring = done.ring
    return {
        "current": ring.current,
        "ring": list(ring.key_ids),
        "problem": ring.problem,
        "keys": [
            {
                "location_id": location_id,
                "key_id": key_id,
                "segments": segments,
                "problem": done.problems.get(key_id, ""),
            }
            for (location_id, key_id), segments in sorted(done.keys.items())
        ],
    }


def _rows(done: Rewrapped) -> Iterator[tuple[object, ...]]:
    for (location_id, key_id), segments in sorted(done.keys.items()):
        in_ring = "yes" if key_id in done.ring.key_ids else "-" if not key_id else "no"
        yield location_id, key_id or "none: no seal", segments, in_ring
    for key_id in sorted({*done.ring.key_ids} - {each for _, each in done.keys}):
        yield "-", key_id, 0, "yes"


def _progress(done: Rewrapped) -> str:
    return f"{counted(done.segments, 'segment')}, {done.changed:,} rewrapped"
