"""Make a tier with a history, and a console over it, for the tests in a browser."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind, RunCounts, RunKind, ToolRun
from services.api.partitions import OffsetGap
from services.api.remote_storage_manager import IndexType
from services.api.segment_batches import imports_of
from services.api.segments import RemoteLogSegmentMetadata, segment_leader_epochs
from services.rsm.layout import CustomMetadata
from services.views.endpoints import ServiceAddresses
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, add, move, segment
from tests.harness.console import ServedConsole, serving_console
from tests.harness.holds import hold
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import served_rlm
from tests.harness.ship_stack import running_stack
from tests.harness.tier import now_ms
from tests.unit.rlm.kafka_bytes import PartitionFiles, batch, write_log_dir

PICTURES = Path(os.environ.get("TEST_PICTURES") or Path(__file__).parents[2] / "build" / "console")

MARKUP = "<img src=x onerror=document.title='owned'>"
"""What a careless page would run."""

MINUTE_MS = 60_000
HISTORY = 380
_LEAVING = 8
_MISSING = range(150, 160)
_EPOCHS = ((0, 0), (2, 900), (3, 2_000), (7, 3_100))


@dataclass(frozen=True)
class Shown:
    """The console, and the partition with a history."""

    console: ServedConsole
    orders: TopicIdPartition

    def url(self, *parts: object, query: str = "") -> str:
        return f"{self.console.url}#/{'/'.join(map(str, parts))}{query}"

    @property
    def partition(self) -> tuple[str, str, str, int]:
        return "partition", uuid_to_text(self.orders.topic_id), self.orders.topic, 0


@contextmanager
def served_history(database_url: str, directory: Path) -> Iterator[Shown]:
    """Serve RLMM, RLM and the console over a migrated database without rows."""
    orders = TopicIdPartition(random_uuid(), "orders", 0)
    log_dir = write_log_dir(directory / "logs")
    files = _local_log(log_dir, orders)
    with serving_rlmm(database_url) as rlmm, running_stack(database_url, directory / "o") as stack:
        _fill(rlmm, orders)
        stack.ship(log_dir)
        for base in (3_950, 3_960):
            files.segment(base, [batch(base, 10, timestamp_ms=now_ms())])
            files.snapshot(base + 10)
        files.segment(3_970, [batch(3_970, 5, timestamp_ms=now_ms())])
        with (
            served_rlm(stack.rlm(log_dir)) as (_, address),
            serving_console(ServiceAddresses(rlmm=rlmm.address, rlm=address)) as console,
        ):
            yield Shown(console, orders)


def _local_log(log_dir: Path, name: TopicIdPartition) -> PartitionFiles:
    """Write a log whose first local offset is 3,800: the rest is in the tier alone."""
    files = PartitionFiles(log_dir, name)
    files.epochs(*_EPOCHS)
    for base in range(3_800, 3_950, 10):
        files.segment(base, [batch(base, 10, timestamp_ms=now_ms())])
        files.snapshot(base + 10)
    files.segment(3_950, [batch(3_950, 5, timestamp_ms=now_ms())])
    return files


def _fill(rlmm: RlmmProcess, orders: TopicIdPartition) -> None:
    client = rlmm.client
    history = [_segment(orders, number) for number in range(HISTORY) if number not in _MISSING]
    client.import_remote_log_segments(imports_of(history))
    client.record_gap(orders, OffsetGap(1_560, 1_599), 1)
    for leaving in history[:_LEAVING]:
        move(client, leaving, DELETE_STARTED)
    add(client, segment(orders, 3_970, 3_979, {7: 3_970}))
    client.put_topic_config(
        orders.topic_id, {"retention.ms": "604800000", "sediment.owner": MARKUP}
    )
    for topic, segments, size in (("payments", 40, 900), ("__proto__", 3, 5), ("audit.log", 9, 77)):
        tp = TopicIdPartition(random_uuid(), topic, 0)
        made = [_segment(tp, n, segment_size_in_bytes=size << 20) for n in range(segments)]
        client.import_remote_log_segments(imports_of(made))
    hold(client, tp)
    anomaly = Anomaly(
        AnomalyKind.CORRUPT_OBJECT, orders.topic_id, 0, random_uuid(), "1:a.log", MARKUP
    )
    client.report_anomalies([anomaly], "run-1")
    run = ToolRun(RunKind.RETENTION, "run-1", duration_ms=61_000)
    client.report_tool_run(run, [RunCounts(None, 1_234, 1_234, 9 << 30)])


def _segment(tp: TopicIdPartition, number: int, **fields: Any) -> RemoteLogSegmentMetadata:
    start, end = number * 10, number * 10 + 9
    before = [(epoch, first) for epoch, first in _EPOCHS if first <= start][-1:]
    within = [(epoch, first) for epoch, first in _EPOCHS if start < first <= end]
    epochs = [(epoch, max(first, start)) for epoch, first in before] + within
    at_ms = now_ms() - (HISTORY + 10 - number) * 20 * MINUTE_MS
    copy = CustomMetadata(
        1, f"{number:016x}", 1 << 30, dict.fromkeys(IndexType, 1_024), number.to_bytes(16, "big")
    )
    values: dict[str, Any] = {
        "max_timestamp_ms": at_ms,
        "broker_id": 1,
        "event_timestamp_ms": at_ms + MINUTE_MS,
        "segment_size_in_bytes": 1 << 30,
        "state": FINISHED,
        "custom_metadata": copy.to_bytes(),
        **fields,
    }
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(tp, random_uuid()),
        start,
        end,
        segment_leader_epochs=segment_leader_epochs(epochs),
        **values,
    )


class Guarded:
    """Fails at its end if the page had an error or asked another host."""

    def __init__(self, page: Page, shown: Shown) -> None:
        self._page = page
        self._own = shown.console.url
        self._wrong: list[str] = []

    def __enter__(self) -> None:
        self._page.on("pageerror", lambda error: self._wrong.append(str(error)))
        self._page.on(
            "console",
            lambda line: self._wrong.append(line.text) if line.type == "error" else None,
        )
        self._page.on("request", self._check)

    def _check(self, request: Any) -> None:
        if not request.url.startswith(self._own):
            self._wrong.append(f"asked {request.url}")

    def __exit__(self, *_: object) -> None:
        assert self._wrong == []
