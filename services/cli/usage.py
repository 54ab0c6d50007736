"""Show what the tier holds and costs, by topic or by owner: `sediment usage`."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from services.api.ids import uuid_to_text
from services.api.partitions import NO_SEGMENTS, SegmentTotals
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_kept_segments
from services.api.segments import saved_bytes_of
from services.cli.command import option, quantity, toggle
from services.cli.connections import Call, Topics, command_group, with_services
from services.cli.names import chosen_topics
from services.cli.output import CommandError, Table, print_json, print_tables, say
from services.cli.tables import Wide
from services.common.quantities import SIZE_BYTES
from services.views.documents import Json, fields_as_json
from services.views.texts import size_text
from services.views.topics import TopicFigures
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
_LAST = [f"{days} d" for days in DAYS]


class By(StrEnum):
    """What a row of the output stands for."""

    TOPIC = "topic"
    OWNER = "owner"


@dataclass
class Usage:
    """What the tier holds of a topic, of an owner's topics, or of all.

    Attributes:
        kept_segments, kept_bytes: of what a broker deleted and the store still has.
        kept_saved_bytes: by how much their logs are longer than their objects.
    """

    name: str
    topic_id: UUID | None = None
    owner: str | None = None
    topics: int = 0
    partitions: int = 0
    totals: SegmentTotals = NO_SEGMENTS
    kept_segments: int = 0
    kept_bytes: int = 0
    kept_saved_bytes: int = 0
    ages: Ages = field(default_factory=Ages)

    @property
    def objects(self) -> int:
        """Return how many objects the segments have once they are copied."""
        return OBJECTS_PER_SEGMENT * (self.totals.live_segments + self.kept_segments)

    @property
    def stored_bytes(self) -> int:
        """Return the size of the objects of the finished logs."""
        return self.totals.finished_bytes - self.totals.saved_bytes

    def add(self, other: "Usage") -> None:
        self.topics += other.topics
        self.partitions += other.partitions
        self.totals += other.totals
        self.kept_segments += other.kept_segments
        self.kept_bytes += other.kept_bytes
        self.kept_saved_bytes += other.kept_saved_bytes
        self.ages.add(other.ages)


@app.command()
@with_services("rlmm", limit="--limit")
def usage(
    call: Call,
    topics: Topics = None,
    by: By = option("One row for each topic or for each owner.", default=By.TOPIC),
    ages: bool = toggle("--ages", "Also read all segments, for bytes by age and growth."),
    price_per_gib_month: float | None = option(
        "What a GiB costs for a month.", metavar="PRICE", min=0
    ),
    price_per_thousand_writes: float | None = option(
        "With --ages: of 1,000 requests.", metavar="PRICE", min=0
    ),
    part_size_bytes: int = quantity(
        "--part-size",
        SIZE_BYTES,
        "RSM's RSM_PART_SIZE_BYTES, to count requests.",
        DEFAULT_PART_BYTES,
        min=1,
    ),
) -> None:
    """Show what the tier holds and costs.

    Sizes are of logs, without indexes: Kafka's, and of their objects (stored)
    if some are compressed or encrypted; the price is for these. The owner of a
    topic is its setting sediment.owner. Reads RLMM's totals; only --ages reads
    segments. What a broker deleted and the store still keeps counts apart.
    Totals include the earlier history of a log that began again after its
    broker lost its disk (EARLIER_HISTORY in `sediment partitions`).
    """
    if price_per_thousand_writes is not None and not ages:
        raise CommandError("--price-per-thousand-writes: requests are counted by --ages, add it")
    with call.rlmm_client() as manager:
        rows = [_usage_of(manager, topic) for topic in chosen_topics(manager, topics)]
        rows += _add_kept(manager, rows, topics or [])
        if ages:
            _read_ages(manager, rows, topics or [], part_size_bytes)
    if by is By.OWNER:
        rows = _by_owner(rows)
    most = call.rows_at_most
    if call.is_json:
        for row in rows[:most]:
            described = _as_json(row, by, price_per_gib_month)
            print_json(described | (_ages_as_json(row, price_per_thousand_writes) if ages else {}))
        return
    if not rows:
        say("no topics")
        return
    has_owners = by is By.TOPIC and any(row.owner for row in rows)
    has_kept = any(row.kept_segments for row in rows)
    has_stored = any(row.totals.saved_bytes for row in rows)
    every = [*rows[:most], _sum(rows)]

    def table(title: str, cells: Callable[[Usage], Json]) -> Table:
        rows = [(row.name, *cells(row).values()) for row in every]
        return title, (by.value, *cells(every[-1])), rows

    has = (has_owners, has_stored, has_kept)
    tables = [table("", lambda row: _cells(row, by, *has, price_per_gib_month))]
    if ages:
        title = "Requests that wrote what was copied in the last days"
        tables += [
            table("Ages of the newest records", _cells_of_ages),
            table("Copied in the last days", lambda row: _sizes(_LAST, row.ages.copied)),
            table(title, lambda row: _cells_of_writes(row, price_per_thousand_writes)),
        ]
    print_tables(*tables, is_wide=call.is_wide)
    if most is not None and len(rows) > most:
        call.say_cut(f"of {len(rows):,} {by.value}s; the sum is of all")


def _usage_of(manager: RemoteLogMetadataManager, topic: TopicFigures) -> Usage:
    owner = manager.topic_config(topic.topic_id).config.owner
    return Usage(topic.name, topic.topic_id, owner, 1, len(topic.partitions), topic.totals)


def _add_kept(
    manager: RemoteLogMetadataManager, rows: Sequence[Usage], topics: Sequence[str]
) -> list[Usage]:
    """Count the kept segments in the rows' topics; return rows for topics that were deleted."""
    by_id, deleted = {row.topic_id: row for row in rows}, dict[UUID, Usage]()
    for segment in all_kept_segments(manager):
        topic_id, name = segment.topic_id_partition.topic_id, segment.topic_id_partition.topic
        row = by_id.get(topic_id)
        if row is None:
            if topics and name not in topics:
                continue
            row = deleted.setdefault(topic_id, Usage(name, topic_id, topics=1))
        row.kept_segments += 1
        if segment.segment_size_in_bytes >= 0:
            row.kept_bytes += segment.segment_size_in_bytes
            row.kept_saved_bytes += saved_bytes_of(segment.custom_metadata)
    return sorted(deleted.values(), key=lambda each: each.name)


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
    """Return what a month costs, also of segments that are being copied or deleted, or kept."""
    if price is None:
        return None
    saved_bytes = row.totals.saved_bytes + row.kept_saved_bytes
    return (row.totals.live_bytes + row.kept_bytes - saved_bytes) / GIB * price


def _cost_of_writes(row: Usage, price: float | None) -> float | None:
    return None if price is None else row.ages.writes[-1] / 1_000 * price


def _as_json(row: Usage, by: By, price: float | None) -> Json:
    described: Json = {"owner": row.owner, "topics": row.topics}
    if by is By.TOPIC and row.topic_id is not None:
        topic_id = uuid_to_text(row.topic_id)
        described = {"topic": row.name, "topic_id": topic_id, "owner": row.owner}
    totals = ("finished_segments", "finished_bytes", "live_segments", "live_bytes")
    described |= {"partitions": row.partitions, **fields_as_json(row.totals, *totals)}
    described |= fields_as_json(row, "stored_bytes", "kept_segments", "kept_bytes", "objects")
    if (cost := _cost(row, price)) is not None:
        described["cost_per_month"] = round(cost, 6)
    return described


def _ages_as_json(row: Usage, price: float | None) -> Json:
    names, last = [f"under_{days}d" for days in DAYS], [f"last_{days}d" for days in DAYS]
    described: Json = {
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


def _cells(
    row: Usage, by: By, has_owners: bool, has_stored: bool, has_kept: bool, price: float | None
) -> Json:
    cost = _cost(row, price)
    return {
        **({"owner": row.owner or NO_OWNER} if has_owners else {}),
        **({"topics": row.topics} if by is By.OWNER else {}),
        Wide("partitions"): row.partitions,
        "segments": row.totals.finished_segments,
        Wide("objects"): row.objects,
        "size": size_text(row.totals.finished_bytes),
        **({"stored": size_text(row.stored_bytes)} if has_stored else {}),
        **({"kept": size_text(row.kept_bytes)} if has_kept else {}),
        **({} if cost is None else {"per month": f"{cost:,.2f}"}),
    }


def _cells_of_ages(row: Usage) -> Json:
    return _sizes([*(f"< {last}" for last in _LAST), "older"], row.ages.by_age)


def _sizes(columns: Sequence[str], sizes_bytes: Sequence[int]) -> Json:
    return dict(zip(columns, map(size_text, sizes_bytes), strict=True))


def _cells_of_writes(row: Usage, price: float | None) -> Json:
    cost = _cost_of_writes(row, price)
    writes: Json = dict(zip(_LAST, row.ages.writes, strict=True))
    return writes | ({} if cost is None else {"per month": f"{cost:,.2f}"})
