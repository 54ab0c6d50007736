"""Show what the tier holds and costs, by topic or by owner: `sediment usage`."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated
from uuid import UUID

import typer

from services.api.ids import uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.cli.connections import Call, Topics, command_group, with_services
from services.cli.output import CommandError, print_json, print_table
from services.cli.topics import KnownTopic, chosen_topics
from services.views.texts import size_text
from services.workflows.tier_usage import (
    DAYS,
    DEFAULT_PART_BYTES,
    GIB,
    OBJECTS_PER_SEGMENT,
    Ages,
    finished_segments,
)

app = command_group()

NO_OWNER = "-"


class By(StrEnum):
    """What a row of the output stands for."""

    TOPIC = "topic"
    OWNER = "owner"


@dataclass
class Usage:
    """What the tier holds of a topic, of an owner's topics, or of all."""

    name: str
    topic_id: UUID | None = None
    owner: str | None = None
    topics: int = 0
    partitions: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    ages: Ages = field(default_factory=Ages)

    @property
    def objects(self) -> int:
        """Return how many objects the segments have once they are copied."""
        return OBJECTS_PER_SEGMENT * self.totals.live_segments

    def add(self, other: "Usage") -> None:
        self.topics += other.topics
        self.partitions += other.partitions
        self.totals += other.totals
        self.ages.add(other.ages)


def _price(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise typer.BadParameter("must be a number, 0 or more")
    return value


@app.command()
@with_services("rlmm")
def usage(
    call: Call,
    topics: Topics = None,
    by: Annotated[By, typer.Option(help="One row for each topic or for each owner.")] = By.TOPIC,
    ages: Annotated[
        bool,
        typer.Option("--ages", help="Also read all segments, for bytes by age and growth."),
    ] = False,
    price_per_gib_month: Annotated[
        float | None,
        typer.Option(metavar="PRICE", callback=_price, help="What a GiB costs for a month."),
    ] = None,
    price_per_thousand_writes: Annotated[
        float | None,
        typer.Option(metavar="PRICE", callback=_price, help="With --ages: of 1,000 requests."),
    ] = None,
    part_size_bytes: Annotated[
        int, typer.Option(min=1, help="RSM's RSM_PART_SIZE_BYTES, to count requests.")
    ] = DEFAULT_PART_BYTES,
) -> None:
    """Show what the tier holds and costs.

    Sizes are of logs, without indexes. The owner of a topic is its setting
    sediment.owner. Reads totals, which RLMM keeps; only --ages reads segments.
    """
    if price_per_thousand_writes is not None and not ages:
        raise CommandError("--price-per-thousand-writes: requests are counted by --ages, add it")
    with call.rlmm_client() as manager:
        rows = [_usage_of(manager, topic) for topic in chosen_topics(manager, topics or [])]
        if ages:
            _read_ages(manager, rows, topics or [], part_size_bytes)
    if by is By.OWNER:
        rows = _by_owner(rows)
    if call.is_json:
        for row in rows:
            described = _as_json(row, by, price_per_gib_month)
            print_json(described | (_ages_as_json(row, price_per_thousand_writes) if ages else {}))
        return
    _print(rows, by, price_per_gib_month)
    if ages:
        _print_ages(rows, by)
        _print_writes(rows, by, price_per_thousand_writes)


def _usage_of(manager: RemoteLogMetadataManager, topic: KnownTopic) -> Usage:
    owner = manager.topic_config(topic.topic_id).config.owner
    return Usage(topic.name, topic.topic_id, owner, 1, len(topic.partitions), topic.totals)


def _read_ages(
    manager: RemoteLogMetadataManager,
    rows: Sequence[Usage],
    topics: Sequence[str],
    part_bytes: int,
) -> None:
    """Count the ages of all finished segments of the rows' topics."""
    by_id = {str(row.topic_id): row.ages for row in rows}
    now_ms = time.time_ns() // 1_000_000
    for name in sorted({row.name for row in rows}) if topics else [""]:
        for topic_id, max_timestamp_ms, copied_at_ms, size in finished_segments(manager, name):
            if topic_id in by_id:
                by_id[topic_id].count(now_ms, max_timestamp_ms, copied_at_ms, size, part_bytes)


def _by_owner(rows: Iterable[Usage]) -> list[Usage]:
    """Sum up the rows of each owner; topics without an owner come last."""
    owners: dict[str | None, Usage] = {}
    for row in rows:
        owners.setdefault(row.owner, Usage(row.owner or NO_OWNER, owner=row.owner)).add(row)
    return sorted(owners.values(), key=lambda each: (each.owner is None, each.name))


def _cost(row: Usage, price: float | None) -> float | None:
    """Return what a month costs, also of segments that are being copied or deleted."""
    return None if price is None else row.totals.live_bytes / GIB * price


def _cost_of_writes(row: Usage, price: float | None) -> float | None:
    return None if price is None else row.ages.writes[-1] / 1_000 * price


def _as_json(row: Usage, by: By, price: float | None) -> dict[str, object]:
    cost, totals = _cost(row, price), row.totals
    described: dict[str, object] = {"owner": row.owner, "topics": row.topics}
    if by is By.TOPIC and row.topic_id is not None:
        topic_id = uuid_to_text(row.topic_id)
        described = {"topic": row.name, "topic_id": topic_id, "owner": row.owner}
    described |= {
        "partitions": row.partitions,
        "finished_segments": totals.finished_segments,
        "finished_bytes": totals.finished_bytes,
        "live_segments": totals.live_segments,
        "live_bytes": totals.live_bytes,
        "objects": row.objects,
    }
    if cost is not None:
        described["cost_per_month"] = round(cost, 6)
    return described


def _ages_as_json(row: Usage, price: float | None) -> dict[str, object]:
    names, last = [f"under_{days}d" for days in DAYS], [f"last_{days}d" for days in DAYS]
    described: dict[str, object] = {
        "bytes_by_age": dict(zip([*names, "older"], row.ages.by_age, strict=True)),
        "bytes_copied": dict(zip(last, row.ages.copied, strict=True)),
        "write_requests": dict(zip(last, row.ages.writes, strict=True)),
    }
    if (cost := _cost_of_writes(row, price)) is not None:
        described["write_cost_per_month"] = round(cost, 6)
    return described


def _sum(rows: Iterable[Usage]) -> Usage:
    total = Usage("sum")
    for row in rows:
        total.add(row)
    return total


def _print(rows: Sequence[Usage], by: By, price: float | None) -> None:
    has_owners = by is By.TOPIC and any(row.owner for row in rows)
    columns = [
        by.value,
        *(["owner"] if has_owners else []),
        *(["topics"] if by is By.OWNER else []),
    ]
    columns += [
        "partitions",
        "segments",
        "objects",
        "size",
        *(["per month"] if price is not None else []),
    ]

    def cells(row: Usage) -> Iterator[object]:
        yield row.name
        if has_owners:
            yield row.owner or NO_OWNER
        if by is By.OWNER:
            yield row.topics
        yield row.partitions
        yield row.totals.finished_segments
        yield row.objects
        yield size_text(row.totals.finished_bytes)
        if (cost := _cost(row, price)) is not None:
            yield f"{cost:,.2f}"

    print_table("Usage", columns, [list(cells(row)) for row in [*rows, _sum(rows)]])


def _print_ages(rows: Sequence[Usage], by: By) -> None:
    classes = [*(f"< {days} d" for days in DAYS), "older"]
    columns = [by.value, *classes, *(f"copied {days} d" for days in DAYS[:2])]
    print_table(
        "Ages of the newest records, and what was copied",
        columns,
        [
            [row.name, *map(size_text, [*row.ages.by_age, *row.ages.copied[:2]])]
            for row in [*rows, _sum(rows)]
        ],
    )


def _print_writes(rows: Sequence[Usage], by: By, price: float | None) -> None:
    columns = [by.value, *(f"{days} d" for days in DAYS)]
    columns += ["per month"] if price is not None else []

    def cells(row: Usage) -> Iterator[object]:
        yield row.name
        yield from row.ages.writes
        if (cost := _cost_of_writes(row, price)) is not None:
            yield f"{cost:,.2f}"

    table = [list(cells(row)) for row in [*rows, _sum(rows)]]
    print_table("Requests that wrote what was copied in the last days", columns, table)
