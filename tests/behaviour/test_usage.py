"""Test `sediment usage`: what the tier holds and costs, by topic and by owner."""

import time
from typing import Any

import pytest

from services.api.ids import TopicIdPartition, random_uuid, uuid_to_text
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, add, finished, move, segment
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess

DAY_MS = 86_400_000
GIB = 1 << 30
PART = GIB // 2

rlmm = served_fixtures.rlmm


def a_partition(topic: str, partition: int = 0) -> TopicIdPartition:
    while uuid_to_text(topic_id := random_uuid()).startswith("-"):
        pass
    return TopicIdPartition(topic_id, topic, partition)


def fill(rlmm: RlmmProcess, tp: TopicIdPartition, sizes: list[int], **fields: Any) -> None:
    for number, size in enumerate(sizes):
        finished(rlmm.client, tp, number, number, segment_size_in_bytes=size, **fields)


@pytest.fixture
def orders(rlmm: RlmmProcess) -> TopicIdPartition:
    """Two partitions of a topic with an owner, a copy and a deletion, beside another topic."""
    orders = a_partition("orders")
    fill(rlmm, orders, [PART, PART])
    other = TopicIdPartition(orders.topic_id, "orders", 1)
    fill(rlmm, other, [PART])
    gone = finished(rlmm.client, other, 1, 1, segment_size_in_bytes=PART)
    move(rlmm.client, gone, DELETE_STARTED)
    add(rlmm.client, segment(other, 2, 2, segment_size_in_bytes=PART))
    rlmm.client.put_topic_config(orders.topic_id, {"sediment.owner": "sales"})
    fill(rlmm, a_partition("audit"), [1_000])
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
        "objects": 15,
        "cost_per_month": 0.05,
    }
    assert rlmm.answers("usage", "orders", "orders", "--price-per-gib-month=0.02") == [found]


def test_owners_have_the_sums_of_their_topics(rlmm: RlmmProcess, orders: TopicIdPartition) -> None:
    returns = a_partition("returns")
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
    options = ("--price-per-thousand-writes=5", "--part-size-bytes=1000")
    for number, (size, days) in enumerate(ages.items()):
        newest_ms = -1 if days is None else int(now_ms - days * DAY_MS)
        copied_ms = int(now_ms - (days or 3) * DAY_MS)
        copy = segment(
            a_partition(f"t{number}"),
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
    sums = [line.split("│")[1:-1] for line in lines if "│ sum" in line]
    assert [[cell.strip() for cell in cells] for cells in sums] == [
        ["sum", "-", "3", "4", "18", "1.5 GiB", "0.05"],
        ["sum", "0 B", "0 B", "0 B", "1.5 GiB", "0 B", "0 B"],
        ["sum", "0", "0", "0", "0.00"],
    ]


def test_an_unknown_topic_is_refused(rlmm: RlmmProcess) -> None:
    assert "the tier has no topic nowhere" in rlmm.refusal("usage", "nowhere")


@pytest.mark.parametrize("price", ["nan", "inf", "-1"])
def test_a_price_is_a_number(rlmm: RlmmProcess, price: str) -> None:
    done = rlmm.sediment("usage", f"--price-per-gib-month={price}")
    assert (done.returncode, done.stdout) == (2, "")
    assert "0 or more" in done.stderr


def test_requests_are_priced_where_they_are_counted(rlmm: RlmmProcess) -> None:
    assert "add it" in rlmm.refusal("usage", "--price-per-thousand-writes=5")


def test_topics_of_one_name_are_told_apart(rlmm: RlmmProcess) -> None:
    first, second = a_partition("orders"), a_partition("orders")
    fill(rlmm, first, [1])
    fill(rlmm, second, [20])
    name = f"{uuid_to_text(second.topic_id)}:orders"
    [row] = rlmm.answers("usage", "--ages", name)
    assert (row["finished_bytes"], sum(row["bytes_by_age"].values())) == (20, 20)
    assert "several topics have had the name orders" in rlmm.refusal("usage", "orders")
