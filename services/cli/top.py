"""Show what the tier does, again and again: `sediment top`."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from threading import Event
from uuid import UUID

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import PartitionDescription, all_descriptions
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    PartitionSummary,
    all_partitions,
)
from services.cli.command import option, quantity
from services.cli.connections import Call, command_group, with_services
from services.cli.output import print_line
from services.cli.tables import table_lines
from services.common.quantities import DURATION_S, counted
from services.rpc.client.probe import now_ms
from services.views.endpoints import Severity, TierClients, is_ready
from services.views.texts import size_text, time_text
from services.views.tier import Line, service_lines, with_next
from services.views.topics import TopicFigures, sum_topics

app = command_group()

_CLEAR = "\x1b[H\x1b[J"
_WIDTH = 80
_COLUMNS = ("topic", "tier", "copied/s", "lag", "blocked")
_HEAD_LINES = 4
_LINES = 24
"""Of a screen whose height is not known."""


@app.command()
@with_services("rsm", "rlmm", "rlm", has_output=False)
def top(
    call: Call,
    interval_s: float = quantity(
        "--interval", DURATION_S, "Time between two screens.", 2.0, min=0.5
    ),
    count: int = option("Screens to show; 0: until Ctrl-C.", default=0, min=0),
) -> None:
    """Show topics with tier, growth and lag, live.

    Those with the largest lag come first. The columns lag and blocked
    (partitions) are of the RLMs whose addresses are known. A service that
    does not answer is named.
    """
    with call.connect(call.known_addresses("rsm", "rlmm", "rlm")) as tier:
        before, read_at_s = dict[UUID, int](), 0.0
        for number in range(count or sys.maxsize):
            if number and Event().wait(interval_s):
                return
            problems, summaries, described = _read(tier)
            topics = sum_topics(summaries, described)
            sizes = {id: each.totals.finished_bytes for id, each in topics.items()}
            elapsed_s = time.monotonic() - read_at_s
            growth = {id: (sizes[id] - before[id]) / elapsed_s for id in sizes.keys() & before}
            before, read_at_s = (sizes if summaries else {}), read_at_s + elapsed_s
            _show([*topics.values()], growth, problems)


def _read(
    tier: TierClients,
) -> tuple[list[Line], list[PartitionSummary], list[PartitionDescription]]:
    """Read the partitions from the services that answer; return a line for each that does not."""
    endpoints = tier.probe()
    problems = [line for line in service_lines(endpoints) if line.severity > Severity.OK]
    summaries, described = list[PartitionSummary](), list[PartitionDescription]()
    try:
        if tier.metadata is not None and is_ready(endpoints, "rlmm"):
            summaries = list(all_partitions(tier.metadata, page_size=MAX_PAGE_SIZE))
        for each in endpoints:
            if each.service == "rlm" and each.severity is Severity.OK:
                described += all_descriptions(tier.logs[each.address])
    except RemoteStorageError as e:
        problems.append(Line("tier", Severity.CRITICAL, f"not read: {e}", "sediment doctor"))
    return problems, summaries, described


def _show(
    topics: Sequence[TopicFigures], growth: Mapping[UUID, float], problems: Iterable[Line]
) -> None:
    height = shutil.get_terminal_size((_WIDTH, _LINES)).lines
    sys.stdout.write(_CLEAR if sys.stdout.isatty() else "")
    texts = (
        with_next(f"{each.what} {each.severity.name.lower()}: {each.text}", each.next, _WIDTH)
        for each in problems
    )
    width = _WIDTH if sys.stdout.isatty() else None
    for line in screen(topics, growth, height, now_ms(), [*chain(*texts)], width):
        print_line([line])


def screen(
    topics: Sequence[TopicFigures],
    growth: Mapping[UUID, float],
    height: int,
    at_ms: int,
    problems: Sequence[str] = (),
    width: int | None = _WIDTH,
) -> Iterator[str]:
    """Yield the lines of a screen; topics with the largest lag come first.

    Args:
        growth: of topics in the tier, bytes per second, by id; of some it is not known.
        problems: lines to show first.
        width: of the table; None for whole names.
    """
    tier, lag = sum(t.totals.finished_bytes for t in topics), sum(t.lag_bytes for t in topics)
    yield f"{time_text(at_ms)}  {_size(tier)} in the tier, lag {size_text(lag)}"
    yield from problems
    yield ""
    order = sorted(topics, key=lambda t: (-t.lag_bytes, -t.totals.finished_bytes, t.name))
    shown = order[: max(height - _HEAD_LINES - len(problems), 1)]
    rows = [
        (
            topic.name,
            _size(topic.totals.finished_bytes),
            _size(int(growth.get(topic.topic_id, 0.0))),
            size_text(topic.lag_bytes),
            topic.blocked_partitions,
        )
        for topic in shown
    ]
    yield from table_lines(_COLUMNS, rows, width=width, encoding=sys.stdout.encoding)
    if len(topics) > len(shown):
        yield f"and {counted(len(topics) - len(shown), 'topic')} more"


def _size(size_bytes: int) -> str:
    """Format a size; "-" if it is 0, or not known."""
    return size_text(size_bytes) if size_bytes > 0 else "-"
