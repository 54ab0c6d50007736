"""Test what a person narrows lists by: names, patterns, states, offsets and limits."""

import json
from collections.abc import Iterator
from typing import cast

import pytest

from services.api.calls import MutationContext
from services.api.endpoints import RlmEndpoint
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    DescribePage,
    PartitionDescription,
    Problem,
    ProblemKind,
)
from services.api.remote_log_metadata_manager import all_segments
from services.api.replicas import ReplicaService
from services.api.topic_config import RetentionOwner
from tests.contract.rlmm.segments import (
    DELETE_FINISHED,
    DELETE_STARTED,
    FINISHED,
    MARKED,
    PARTITION_FINISHED,
    PARTITION_STARTED,
    add,
    finished,
    move,
    put_deletion,
    tail,
)
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.sediment_command import sediment
from tests.harness.served import served_rlm
from tests.harness.tier import a_topic

rlmm = served_fixtures.rlmm


def topics(rlmm: RlmmProcess, *arguments: str) -> list[str]:
    return [each["topic"] for each in rlmm.answers("topics", "list", *arguments)]


@pytest.fixture
def log(rlmm: RlmmProcess) -> TopicIdPartition:
    """A partition with three finished segments, the first of which is being deleted."""
    (tp,) = a_topic("orders", 1)
    made = [finished(rlmm.client, tp, first, first + 9) for first in (0, 10, 20)]
    move(rlmm.client, made[0], DELETE_STARTED)
    return tp


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ((), [0, 10, 20]),
        (("--state", "FINISHED"), [10, 20]),
        (("--state", "DELETE_STARTED", "--state", "FINISHED"), [0, 10, 20]),
        (("--state", "COPY_STARTED"), []),
        (("--offset", "19"), [10]),
        (("--offset", "30"), []),
        (("--limit", "2"), [0, 10]),
        (("--limit", "0"), [0, 10, 20]),
    ],
    ids=str,
)
def test_segments(
    rlmm: RlmmProcess, log: TopicIdPartition, options: tuple[str, ...], starts: list[int]
) -> None:
    listed = rlmm.answers("segments", f"{log.topic}-0", *options)
    assert [each["start_offset"] for each in listed] == starts


def test_a_tail_is_named(rlmm: RlmmProcess, log: TopicIdPartition) -> None:
    add(rlmm.client, tail(log, 30, 34), FINISHED)
    listed = rlmm.answers("segments", f"{log.topic}-0", "--state", "FINISHED")
    assert [(each["start_offset"], each["tail"]) for each in listed] == [
        (10, False),
        (20, False),
        (30, True),
    ]
    lines = rlmm.sediment("segments", f"{log.topic}-0").stdout.splitlines()
    assert ["tail" in line for line in lines[1:]] == [False, False, False, True]


def test_the_last_events_and_what_was_left_out(rlmm: RlmmProcess, log: TopicIdPartition) -> None:
    every = [each["revision"] for each in rlmm.answers("events", f"{log.topic}-0")]
    done = rlmm.sediment("events", f"{log.topic}-0", "--last=2", "-o", "json")
    assert [json.loads(line)["revision"] for line in done.stdout.splitlines()] == every[-2:]
    assert done.stderr == "shown: the last 2 events; --last 0 shows all\n"
    done = rlmm.sediment("events", f"{log.topic}-0", f"--last={len(every)}")
    assert (len(done.stdout.splitlines()), done.stderr) == (len(every) + 1, "")


def test_topics_by_names_and_patterns(rlmm: RlmmProcess) -> None:
    for name in ("orders", "orders-eu", "payments"):
        finished(rlmm.client, a_topic(name, 1)[0], 0, 9)
    assert topics(rlmm) == ["orders", "orders-eu", "payments"]
    assert topics(rlmm, "payments") == ["payments"]
    assert topics(rlmm, "o*", "pay*s") == ["orders", "orders-eu", "payments"]
    assert "nothing is named x*; " in rlmm.refusal("topics", "list", "x*")
    done = rlmm.sediment("topics", "list", "--limit=1")
    assert done.stderr == "shown: the first 1 of 3 topics; --limit 0 shows all\n"
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["TOPIC", "orders"]
    assert {row["topic"] for row in rlmm.answers("usage", "orders*")} == {"orders", "orders-eu"}
    assert [row["topic"] for row in rlmm.answers("usage", "--limit=1")] == ["orders"]
    done = rlmm.sediment("usage", "--limit=1")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["TOPIC", "SEGMENTS"],
        ["orders", "1"],
        ["sum", "3"],
    ]
    assert done.stderr == "shown: the first 1 of 3 topics; the sum is of all; --limit 0 shows all\n"
    done = rlmm.sediment("retention", "--limit=2")
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.splitlines()[0] == (
        "shown: the first 2 of 3 partitions, those with the most bytes due; --limit 0 shows all"
    )
    due = {row["topic"] for row in rlmm.answers("retention", "orders", "pay*-0")}
    assert due == {"orders", "payments"}


def test_removed_topics_are_listed_if_asked_for(rlmm: RlmmProcess, log: TopicIdPartition) -> None:
    (gone,) = a_topic("gone", 1)
    finished(rlmm.client, gone, 0, 9)
    assert topics(rlmm, "--removed") == []
    segment = next(all_segments(rlmm.client, gone))
    put_deletion(rlmm.client, gone, MARKED, PARTITION_STARTED)
    move(rlmm.client, segment, DELETE_STARTED, DELETE_FINISHED)
    put_deletion(rlmm.client, gone, PARTITION_FINISHED)
    assert topics(rlmm) == [log.topic]
    assert topics(rlmm, "--removed") == ["gone"]
    assert "1 removed" in rlmm.sediment("topics", "list", "--removed").stdout


class Described:
    """Describe partitions without and with a lag, one of them with many problems."""

    def describe_partitions(self, *_: object, **page: object) -> DescribePage:
        blocked = [Problem(ProblemKind.CORRUPT_BATCH, f"/log/{n}", "why", n, 3) for n in range(30)]
        return DescribePage(
            (
                described("orders", 0),
                described("orders", 1, 300),
                described("payments", 0, 500),
                described("payments", 10, 100, *blocked),
            ),
            "",
            rlms=(
                RlmEndpoint("c", "d-1", 1, "one:50053", "one:9092"),
                RlmEndpoint("c", "d-2", 2, "two:50053"),
            ),
        )


def described(
    topic: str, partition: int, lag_bytes: int = 0, *problems: Problem
) -> PartitionDescription:
    (tp,) = [each for each in a_topic(topic, partition + 1) if each.partition == partition]
    offsets = (1, 0, 0, 0, 100, 100, 99)
    return PartitionDescription(tp, *offsets, 1, 10, 1, lag_bytes, 1, 10, problems)


@pytest.fixture(scope="module")
def rlm() -> Iterator[str]:
    with served_rlm(cast(ReplicaService, Described())) as (_, address):
        yield f"--rlm={address}"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((), ["payments-10", "payments-0", "orders-1", "orders-0"]),
        (("orders",), ["orders-1", "orders-0"]),
        (("*-0",), ["payments-0", "orders-0"]),
        (("orders-0", "payments-1*"), ["payments-10", "orders-0"]),
    ],
    ids=str,
)
def test_partitions_with_problems_and_the_largest_lag_come_first(
    rlm: str, names: tuple[str, ...], shown: list[str]
) -> None:
    done = sediment("partitions", *names, rlm)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == shown
    live, lines = done.stderr.splitlines()[:2], done.stderr.splitlines()[2:]
    assert live == [
        "live: the RLM of broker 1 at one:50053, for consumers of Kafka at one:9092",
        "live: the RLM of broker 2 at two:50053",
    ]
    if "payments-10" not in shown:
        assert lines == []
        return
    assert (len(lines), lines[-1][:20]) == (21, "and 10 problems more")


def test_partitions_are_named_in_any_place_of_the_command(rlm: str) -> None:
    expected = sediment("partitions", "orders", rlm, "-o", "json").stdout
    assert len(expected.splitlines()) == 2
    for words in (["list", "orders", rlm], [rlm, "list", "orders"], [rlm, "orders"]):
        done = sediment("-o", "json", "partitions", *words)
        assert [json.loads(line)["partition"] for line in done.stdout.splitlines()] == [1, 0]
    wrong = sediment("partitions", "order-0", rlm)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "nothing is named order-0; did you mean orders-0?" in wrong.stderr


def test_kept_segments_of_a_topic_that_is_gone(rlmm: RlmmProcess) -> None:
    first, second = a_topic("mistake", 2)
    context = MutationContext(retention_owner=RetentionOwner.BROKER)
    for tp in (first, second):
        only = finished(rlmm.client, tp, 0, 9)
        move(rlmm.client, only, DELETE_STARTED, DELETE_FINISHED, context=context)
        put_deletion(rlmm.client, tp, MARKED, PARTITION_STARTED, PARTITION_FINISHED)
    listed = rlmm.answers("segments", first.topic, "--kept")
    assert sorted(each["partition"] for each in listed) == [0, 1]
    assert all(each["kept_until_ms"] > each["max_timestamp_ms"] for each in listed)
    [of_one] = rlmm.answers("segments", f"{second.topic}-1", "--kept")
    assert of_one["partition"] == 1
    refused = sediment("segments", second.topic, "--kept", "--offset", "1", "--rlmm", rlmm.address)
    assert refused.returncode == 2
    assert "--kept: give neither --state nor --offset" in refused.stderr
