"""Test `sediment usage`: what the tier holds and costs, by topic and by owner."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.topic_config import RetentionOwner
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, Files
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    add,
    finished,
    move,
    segment,
    tail,
)
from tests.contract.rsm_over_s3 import with_properties
from tests.contract.test_rsm_transformed import json_log
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import serving
from tests.harness.tier import a_topic

DAY_MS = 86_400_000
GIB = 1 << 30
PART = GIB // 2

rlmm = served_fixtures.rlmm


def fill(rlmm: RlmmProcess, tp: TopicIdPartition, sizes: list[int], **fields: Any) -> None:
    for number, size in enumerate(sizes):
        finished(rlmm.client, tp, number, number, segment_size_in_bytes=size, **fields)


@pytest.fixture
def orders(rlmm: RlmmProcess) -> TopicIdPartition:
    """Two partitions of a topic with an owner, a copy and a deletion, beside another topic."""
    orders = a_topic("orders")[0]
    fill(rlmm, orders, [PART, PART])
    other = TopicIdPartition(orders.topic_id, "orders", 1)
    fill(rlmm, other, [PART])
    gone = finished(rlmm.client, other, 1, 1, segment_size_in_bytes=PART)
    move(rlmm.client, gone, DELETE_STARTED)
    add(rlmm.client, segment(other, 2, 2, segment_size_in_bytes=PART))
    rlmm.client.put_topic_config(orders.topic_id, {"sediment.owner": "sales"})
    fill(rlmm, a_topic("audit")[0], [1_000])
    return orders


def test_each_topic_has_a_row(rlmm: RlmmProcess, orders: TopicIdPartition) -> None:
    audit, found = rlmm.answers("usage", "--price-per-gib-month", "0.02")
    assert (audit["topic"], audit["owner"], audit["cost_per_month"]) == ("audit", None, 0.0)
    assert found == {
        "topic": "orders",
        "topic_id": uuid_to_text(orders.topic_id),
        "owner": "sales",
        "partitions": 2,
        "finished_segments": 3,
        "finished_bytes": 3 * PART,
        "live_segments": 5,
        "live_bytes": 5 * PART,
        "stored_bytes": 3 * PART,
        "kept_segments": 0,
        "kept_bytes": 0,
        "objects": 15,
        "cost_per_month": 0.05,
    }
    assert rlmm.answers("usage", "orders", "orders", "--price-per-gib-month=0.02") == [found]


def test_tails_count_as_they_are_stored_until_they_are_deleted(rlmm: RlmmProcess) -> None:
    (tp,) = a_topic("tailed")
    last = add(rlmm.client, tail(tp, 0, 4), FINISHED)
    finished(rlmm.client, tp, 0, 9)  # It supersedes the tail.
    size = last.segment_size_in_bytes

    def counted() -> list[int]:
        (row,) = rlmm.answers("usage", "tailed")
        names = ("finished_segments", "finished_bytes", "live_bytes", "objects")
        return [row[name] for name in names]

    assert counted() == [2, 2 * size, 2 * size, 6]
    assert rlmm.client.partition_state(tp).value.gaps == ()
    move(rlmm.client, last, DELETE_STARTED, DELETE_FINISHED)
    assert counted() == [1, size, size, 3]


def test_what_a_broker_deleted_counts_apart_while_it_is_kept(
    rlmm: RlmmProcess, orders: TopicIdPartition
) -> None:
    by_broker = MutationContext(retention_owner=RetentionOwner.BROKER)
    (dropped,) = a_topic("dropped")
    for tp in (orders, dropped):
        kept = finished(rlmm.client, tp, 10, 19, segment_size_in_bytes=PART)
        move(rlmm.client, kept, DELETE_STARTED, DELETE_FINISHED, context=by_broker)
    for state in RemotePartitionDeleteState:
        mark = RemotePartitionDeleteMetadata(dropped, state, 0, 1)
        if state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            rlmm.client.put_remote_partition_delete_metadata(mark)
    rows = {row["topic"]: row for row in rlmm.answers("usage", "--price-per-gib-month", "1")}
    counted = {name: (row["kept_segments"], row["kept_bytes"]) for name, row in rows.items()}
    assert counted == {"audit": (0, 0), "orders": (1, PART), "dropped": (1, PART)}
    assert (rows["orders"]["objects"], rows["orders"]["cost_per_month"]) == (18, 3.0)
    assert "KEPT" in rlmm.sediment("usage").stdout
    [listed] = rlmm.answers("segments", "dropped", "--kept")
    explained = rlmm.sediment("explain", "orders-0", "--offset", "15").stdout
    assert "objects are kept until" in " ".join(explained.split())
    assert listed["kept_until_ms"]


@pytest.mark.deep
def test_a_compressed_topic_has_both_sizes(rlmm: RlmmProcess, tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    plain = RsmSettings(backend="filesystem", directory=tmp_path / "objects")
    log, (small, plainly) = json_log(4 * MIB), (a_topic("small")[0], a_topic("plainly")[0])
    fill(rlmm, plainly, [1000])
    with serving(with_properties(plain, tmp_path, 'compression = "zstd"')) as rsm:
        for start in (0, 10):
            made = segment(small, start, start + 9, segment_size_in_bytes=len(log))
            add(rlmm.client, made)
            custom = rsm.client.copy_log_segment_data(made, Files(log).data())
            move(rlmm.client, made, FINISHED, custom_metadata=custom)
    stored = sum(file.stat().st_size for file in tmp_path.rglob("*.log"))
    [row] = rlmm.answers("usage", "small", "--price-per-gib-month", "100")
    assert (row["finished_bytes"], row["stored_bytes"]) == (2 * len(log), stored)
    assert 3 * stored < 2 * len(log)
    assert row["cost_per_month"] == pytest.approx(stored / GIB * 100, abs=1e-6)
    lines = rlmm.sediment("usage").stdout.splitlines()
    assert re.split("  +", lines[0]) == ["TOPIC", "SEGMENTS", "SIZE", "STORED"]
    assert re.split("  +", lines[1])[2:] == ["1000 B", "1000 B"]
    assert "STORED" not in rlmm.sediment("usage", "plainly").stdout
    by_broker = MutationContext(retention_owner=RetentionOwner.BROKER)
    move(rlmm.client, made, DELETE_STARTED, DELETE_FINISHED, context=by_broker)
    [row] = rlmm.answers("usage", "small", "--price-per-gib-month", "100")
    assert (row["kept_bytes"], row["stored_bytes"]) == (len(log), stored // 2)
    assert row["cost_per_month"] == pytest.approx(stored / GIB * 100, abs=1e-6)


def test_owners_have_the_sums_of_their_topics(rlmm: RlmmProcess, orders: TopicIdPartition) -> None:
    returns = a_topic("returns")[0]
    fill(rlmm, returns, [PART])
    rlmm.client.put_topic_config(returns.topic_id, {"sediment.owner": "sales"})
    rows = rlmm.answers("usage", "--by", "owner")
    assert [(r["owner"], r["topics"], r["partitions"], r["finished_bytes"]) for r in rows] == [
        ("sales", 2, 3, 4 * PART),
        (None, 1, 1, 1_000),
    ]


def test_bytes_are_counted_by_age_and_growth(rlmm: RlmmProcess) -> None:
    now_ms = time.time_ns() // 1_000_000
    ages = {1: 0.5, 20: 2, 300: 8, 4_000: 40, 50_000: None}
    # 50,000 bytes are 50 parts, and two requests to begin and complete the upload.
    writes = {"last_1d": 3, "last_7d": 3 + 3 + 54, "last_30d": 3 + 3 + 54 + 3}
    options = ("--price-per-thousand-writes=5", "--part-size=1000")
    for number, (size, days) in enumerate(ages.items()):
        newest_ms = -1 if days is None else int(now_ms - days * DAY_MS)
        copied_ms = int(now_ms - (days or 3) * DAY_MS)
        copy = segment(
            a_topic(f"t{number}")[0],
            0,
            0,
            segment_size_in_bytes=size,
            max_timestamp_ms=newest_ms,
        )
        add(rlmm.client, copy)
        move(rlmm.client, copy, FINISHED, event_timestamp_ms=copied_ms)
    rows = rlmm.answers("usage", "--ages", "--by", "owner", *options)
    assert [(r["finished_bytes"], r["bytes_by_age"], r["bytes_copied"]) for r in rows] == [
        (
            54_321,
            {"under_1d": 1, "under_7d": 50_020, "under_30d": 300, "older": 4_000},
            {"last_1d": 1, "last_7d": 50_021, "last_30d": 50_321},
        )
    ]
    assert rows[0]["write_requests"] == writes
    assert rows[0]["write_cost_per_month"] == 63 * 5 / 1_000


@pytest.mark.usefixtures("orders")
def test_tables_end_with_a_sum_and_fit_a_terminal(rlmm: RlmmProcess) -> None:
    prices = ("--price-per-gib-month", "0.02", "--price-per-thousand-writes", "0.005")
    done = rlmm.sediment("usage", "--ages", *prices)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert [re.split("  +", line) for line in lines if line.startswith("sum")] == [
        ["sum", "-", "4", "1.5 GiB", "0.05"],
        ["sum", "0 B", "0 B", "0 B", "1.5 GiB"],
        ["sum", "0 B", "0 B", "0 B"],
        ["sum", "0", "0", "0", "0.00"],
    ]


def test_topics_of_one_name_are_told_apart(rlmm: RlmmProcess) -> None:
    first, second = a_topic("orders")[0], a_topic("orders")[0]
    fill(rlmm, first, [1])
    fill(rlmm, second, [20])
    name = f"{uuid_to_text(second.topic_id)}:orders"
    [row] = rlmm.answers("usage", "--ages", name)
    assert (row["finished_bytes"], sum(row["bytes_by_age"].values())) == (20, 20)
    assert "several topics have had the name orders" in rlmm.refusal("usage", "orders")
