"""`sediment scrub`: what the stores hold, read through and held against what was copied."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from uuid import uuid4

from services.api.anomalies import AnomalyKind
from services.api.scrub import Scrub
from services.api.scrub_plan import Pace, Scrubbed, ScrubPlan
from services.cli.connections import connected_rlmm, connected_rsm, connected_segment_objects
from services.cli.failures import EXIT_FAILED, EXIT_PARTIAL, CommandError
from services.cli.output import Format, print_json, print_table, say, size_text
from services.cli.progress import counter
from services.cli.topics import find_topic
from services.rsm.rate_limit import RateLimit
from services.rsm.waiting import Waiting

_PART = re.compile(r"(\d{1,9})/(\d{1,9})")
_KINDS = (AnomalyKind.CORRUPT_OBJECT, AnomalyKind.MISSING_OBJECTS)
_MIB = 1024 * 1024


@dataclass(frozen=True)
class ScrubOptions:
    """What is looked at: a part as I/N, topics by NAME or TOPIC_ID:NAME (none: all), locations."""

    part: str
    topics: Sequence[str]
    locations: Sequence[int]


def run(
    options: ScrubOptions,
    rate_bytes_per_s: int,
    rsm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> int:
    """The exit code."""
    part, parts = _part(options.part)
    with (
        connected_rsm(rsm, data_dir) as store,
        connected_segment_objects(rsm, data_dir) as objects,
        connected_rlmm(rlmm, data_dir) as metadata,
        counter() as count,
    ):

        def show(done: Scrubbed) -> None:
            count("segments", done.segments)
            count("MiB", done.read_bytes // _MIB)

        topic_ids = frozenset(find_topic(metadata, text).topic_id for text in options.topics)
        plan = ScrubPlan(uuid4().hex, part, parts, topic_ids or None, tuple(options.locations))
        pace = Pace(_turns_at(rate_bytes_per_s), Event().wait)
        done = Scrub(metadata, store, objects, plan, pace, show).run()
    if output is Format.JSON:
        print_json(_as_json(plan, options, rate_bytes_per_s, done))
    else:
        _print(done)
    if done.damaged:
        return EXIT_PARTIAL
    return 0 if done.is_complete else EXIT_FAILED


def _part(text: str) -> tuple[int, int]:
    found = _PART.fullmatch(text)
    if found is None:
        raise CommandError(f"--part: {text!r} is not I/N, for example 3/28")
    return int(found[1]), int(found[2])


def _turns_at(bytes_per_s: int) -> Callable[[int], None]:
    return RateLimit(bytes_per_s, Waiting()).take if bytes_per_s else lambda _: None


def _print(done: Scrubbed) -> None:
    rows = [
        ("segments", f"{done.segments:,}"),
        ("verified", f"{done.verified:,}"),
        ("damaged", f"{done.damaged:,}"),
        *((kind.value, f"{done.anomalies[kind]:,}") for kind in _KINDS),
        ("not checked", f"{done.unchecked:,}"),
        ("deleted meanwhile", f"{done.gone:,}"),
        ("listings that broke off", f"{done.unlisted:,}"),
        ("read", size_text(done.read_bytes)),
    ]
    print_table("Scrubbed", ("what", "how many"), rows)
    for reason in done.reasons:
        say(reason)
    if done.is_cut_short:
        say("the store was away for too long: what follows was not looked at; run it again")


def _as_json(
    plan: ScrubPlan, options: ScrubOptions, rate_bytes_per_s: int, done: Scrubbed
) -> dict[str, object]:
    return {
        "run_id": plan.run_id,
        "part": plan.part,
        "parts": plan.parts,
        "topics": list(options.topics),
        "locations": list(plan.locations),
        "rate_bytes_per_s": rate_bytes_per_s,
        "segments": done.segments,
        "verified": done.verified,
        "damaged": done.damaged,
        "anomalies": {kind.value: done.anomalies[kind] for kind in _KINDS},
        "not_checked": done.unchecked,
        "deleted_meanwhile": done.gone,
        "listings_broken_off": done.unlisted,
        "cut_short": done.is_cut_short,
        "read_bytes": done.read_bytes,
        "reasons": done.reasons,
    }
