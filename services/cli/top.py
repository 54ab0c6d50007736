"""Show what the tier does, again and again: `sediment top`."""

import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from threading import Event
from typing import Annotated

import typer

from services.api.remote_log_manager import PartitionDescription, all_descriptions
from services.api.remote_log_metadata_manager import MAX_PAGE_SIZE, PartitionSummary, all_partitions
from services.cli.connections import (
    Call,
    command_group,
    connected_rlm,
    connected_rlmm,
    with_services,
)
from services.cli.endpoints import known_addresses
from services.cli.output import print_line
from services.common.client_security import each_address
from services.rpc.client.probe import now_ms
from services.views.texts import size_text, time_text

app = command_group()

_CLEAR = "\x1b[H\x1b[J"
_WIDTH = 80
_COLUMNS = ("tier", "segments", "copied/s", "waits", "waiting", "held")
_NAME_WIDTH = 23
_HEAD_LINES = 4
_LINES = 24
"""Of a screen whose height is not known."""


@dataclass(slots=True)
class TopicLine:
    """The figures of a topic; those of the broker are sums over the asked RLMs."""

    name: str
    tier_bytes: int = 0
    tier_segments: int = 0
    waiting_bytes: int = 0
    waiting_segments: int = 0
    held_partitions: int = 0
    bytes_per_s: float = 0.0


@app.command()
@with_services("rlmm", "rlm", has_output=False)
def top(
    call: Call,
    interval_s: Annotated[
        float, typer.Option(min=0.5, help="Time between two screens, seconds.")
    ] = 2.0,
    count: Annotated[int, typer.Option(min=0, help="Screens to show; 0: until Ctrl-C.")] = 0,
) -> None:
    """Show topics with tier, growth and what waits, live.

    Those of which most waits come first. The columns waits, waiting and held
    are those of the RLMs whose addresses are known.
    """
    addresses = known_addresses(call, "rlmm", "rlm")
    with ExitStack() as connections:
        metadata = connections.enter_context(connected_rlmm(addresses["rlmm"], call.data_dir))
        logs = [
            connections.enter_context(connected_rlm(address, call.data_dir))
            for address in each_address(addresses["rlm"])
            if address
        ]
        before, read_at_s = dict[str, int](), time.monotonic()
        for number in range(count or sys.maxsize):
            if number and Event().wait(interval_s):
                return
            summaries = list(all_partitions(metadata, page_size=MAX_PAGE_SIZE))
            described = [each for log in logs for each in all_descriptions(log)]
            elapsed_s = time.monotonic() - read_at_s
            read_at_s += elapsed_s
            topics = topic_lines(summaries, described, before, elapsed_s if number else 0.0)
            before = {topic.name: topic.tier_bytes for topic in topics}
            _show(topics)


def topic_lines(
    summaries: Iterable[PartitionSummary],
    described: Iterable[PartitionDescription],
    before: Mapping[str, int],
    elapsed_s: float,
) -> list[TopicLine]:
    """Sum the partitions of each topic; those of which most waits come first.

    Args:
        before: bytes in the tier by topic, as they were `elapsed_s` ago; 0.0: not known.
    """
    lines: dict[str, TopicLine] = {}
    for summary in summaries:
        name, totals = summary.topic_id_partition.topic, summary.totals
        line = lines.setdefault(name, TopicLine(name))
        line.tier_bytes += totals.finished_bytes
        line.tier_segments += totals.finished_segments
    for each in described:
        name = each.topic_id_partition.topic
        line = lines.setdefault(name, TopicLine(name))
        line.waiting_bytes += each.pending_size_bytes
        line.waiting_segments += each.pending_segments
        line.held_partitions += any(problem.held_segments for problem in each.problems)
    for line in lines.values():
        if elapsed_s and line.name in before:
            line.bytes_per_s = (line.tier_bytes - before[line.name]) / elapsed_s
    return sorted(
        lines.values(), key=lambda line: (-line.waiting_bytes, -line.tier_bytes, line.name)
    )


def _show(topics: Sequence[TopicLine]) -> None:
    height = shutil.get_terminal_size((_WIDTH, _LINES)).lines
    sys.stdout.write(_CLEAR if sys.stdout.isatty() else "")
    for line in screen(topics, height, now_ms()):
        print_line([line])


def screen(topics: Sequence[TopicLine], height: int, at_ms: int) -> Iterator[str]:
    """Yield the lines of a screen, of at most 80 columns."""
    tier, waits = sum(t.tier_bytes for t in topics), sum(t.waiting_bytes for t in topics)
    yield f"{time_text(at_ms, 'seconds')}  {size_text(tier)} in the tier, {size_text(waits)} wait"
    yield ""
    yield _line("topic", _COLUMNS)
    shown = topics[: max(height - _HEAD_LINES, 1)]
    for topic in shown:
        growth = "-" if topic.bytes_per_s <= 0 else size_text(int(topic.bytes_per_s))
        cells = (
            size_text(topic.tier_bytes),
            f"{topic.tier_segments:,}",
            growth,
            size_text(topic.waiting_bytes),
            f"{topic.waiting_segments:,}",
            f"{topic.held_partitions:,}",
        )
        yield _line(topic.name, cells)
    if len(topics) > len(shown):
        yield f"and {len(topics) - len(shown):,} topics more"


def _line(name: str, cells: Sequence[str]) -> str:
    if len(name) > _NAME_WIDTH:
        name = f"{name[: _NAME_WIDTH - 3]}..."
    widths = (11, 10, 11, 11, 8, 6)
    right = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return f"{name:<{_NAME_WIDTH}}{right}"
