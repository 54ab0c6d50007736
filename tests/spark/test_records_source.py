"""The records source over real RSM and RLMM, against what a real consumer read."""

import base64
import gzip
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from services.api.errors import (
    CorruptSegmentError,
    InvalidRangeError,
    InvalidRequestError,
    RemoteResourceNotFoundError,
)
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.partitions import OffsetGap
from services.common.inflate import Codec
from services.local.seaweedfs import S3Endpoint
from services.records import columns
from services.records.index_files import AbortedTxn
from services.rlm.copy.ship import ShipSettings, ship
from services.rpc.client.direct import DirectReader
from services.rsm.settings import RsmSettings
from spark_jobs.records.schema import RECORDS_SCHEMA, WITH_HEADERS_SCHEMA
from spark_jobs.records.source import SedimentRecords
from spark_jobs.records.stream import EPOCHS, FIRST, from_json
from tests.contract.rsm_over_s3 import settings_for
from tests.contract.test_rsm_transformed import ZSTD, encrypting, json_log
from tests.harness.served import serving
from tests.harness.synthetic_log import bomb
from tests.harness.tier import BROKER, a_topic
from tests.harness.wrapper import Wrapper
from tests.spark.made_logs import copied, plain
from tests.spark.records_reads import ServedTier, offsets, reaches, records, rows_of, source, tasks
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    COMMIT,
    TRANSACTIONAL,
    batch,
    marker,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_500)]
DATA = Path(__file__).parents[1] / "data"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEVEL = "kafka.isolation.level"
TOPICS = ["orders.eu-west", "payments", "clicks", "profiles", "telemetry", "mixed-codecs"]


def between(topic: str, first: int, end: int = -1) -> dict[str, object]:
    """Return the options that read partition 0 from an offset to another one, exclusive."""
    return {"startingOffsets": {topic: {"0": first}}, "endingOffsets": {topic: {"0": end}}}


def ms_of(time: datetime) -> int:
    return (time - EPOCH) // timedelta(milliseconds=1)


@pytest.fixture(scope="module")
def tier(in_process: ServedTier) -> ServedTier:
    return in_process


@pytest.fixture(scope="module")
def shipped(tier: ServedTier, tmp_path_factory: pytest.TempPathFactory) -> ServedTier:
    """The tier with the bundled log of a real broker in it."""
    log_dir = shutil.copytree(DATA / "kafka-log", tmp_path_factory.mktemp("log") / "log")
    report = ship([log_dir], tier.rsm, tier.rlmm, ShipSettings(threads=4))
    assert sum(each.copied_segments for each in report.partitions) == 72, report
    return tier


def consumed(topic: str) -> list[dict[str, Any]]:
    """Return what a consumer of Kafka read of a topic, in the columns of the source."""
    with gzip.open(DATA / "kafka-log.records.jsonl.gz", "rt") as lines:
        return [as_row(read) for read in map(json.loads, lines) if read["topic"] == topic]


def as_row(read: Mapping[str, Any]) -> dict[str, Any]:
    headers = [{"key": name, "value": decoded(value)} for name, value in read["headers"]]
    return {
        "key": decoded(read["key"]),
        "value": decoded(read["value"]),
        "topic": read["topic"],
        "partition": read["partition"],
        "offset": read["offset"],
        "timestamp": EPOCH + timedelta(milliseconds=read["timestamp_ms"]),
        "timestampType": int(read["timestamp_type"] == "LogAppendTime"),
        "headers": headers or None,
        "leader_epoch": read["leader_epoch"],
        "committed": read["committed"],
    }


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def test_the_schema_is_the_same_in_spark_and_in_arrow() -> None:
    assert to_arrow_schema(WITH_HEADERS_SCHEMA, timezone="UTC") == columns.RECORDS_SCHEMA
    assert [*RECORDS_SCHEMA] == [each for each in WITH_HEADERS_SCHEMA if each.name != "headers"]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("topic", TOPICS)
def test_every_record_is_as_a_consumer_read_it(
    shipped: ServedTier, topic: str, isolation: str
) -> None:
    ends = {p: row[1] for p, row in reaches(shipped, subscribe=topic, **{LEVEL: isolation}).items()}
    wanted = [
        row
        for row in consumed(topic)
        if row["offset"] < ends[row["partition"]]
        and (row["committed"] or isolation == "read_uncommitted")
    ]
    for row in wanted:
        del row["committed"]
    assert len(wanted) > 100
    read = {"subscribe": topic, LEVEL: isolation, "splitBytes": 16_384}
    assert records(shipped, **read, includeHeaders="true") == wanted
    for row in wanted:
        del row["headers"]
    assert records(shipped, **read) == wanted


def test_splits_of_any_size_give_each_record_once(shipped: ServedTier) -> None:
    whole = records(shipped, subscribe="telemetry")
    split = tasks(shipped, subscribe="telemetry", splitBytes=4_096)
    assert len(split) > 4 * len(tasks(shipped, subscribe="telemetry", splitBytes=65_536))
    assert [row for rows in split for row in rows] == whole


@pytest.mark.parametrize(
    ("first", "end"), [(0, 1), (57, 59), (119, 122), (100, 300), (250, -1), (57, 57)]
)
def test_a_range_of_offsets_has_those_offsets(shipped: ServedTier, first: int, end: int) -> None:
    every = offsets(records(shipped, assign={"payments": [0]}))
    wanted = [n for n in every if first <= n and (n < end or end < 0)]
    found = tasks(shipped, assign={"payments": [0]}, **between("payments", first, end))
    assert offsets(row for rows in found for row in rows) == wanted
    assert len(found) <= 1


def test_a_range_of_times_begins_and_ends_at_the_first_record_of_a_time(
    shipped: ServedTier,
) -> None:
    every = records(shipped, subscribe="telemetry")
    times = sorted(row["timestamp"] for row in every)
    first, end = (ms_of(times[len(times) * part // 6]) for part in (2, 3))
    wanted = []
    for partition in sorted({row["partition"] for row in every}):
        rows = [row for row in every if row["partition"] == partition]
        at, until = (
            next(n for n, row in enumerate(rows) if ms_of(row["timestamp"]) >= ms)
            for ms in (first, end)
        )
        wanted += rows[at:until]
    found = records(shipped, subscribe="telemetry", startingTimestamp=first, endingTimestamp=end)
    assert found == wanted
    assert found


def test_old_segments_are_not_planned_and_a_time_without_records_is_named(
    shipped: ServedTier,
) -> None:
    every = records(shipped, assign={"profiles": [0]})
    newest = max(ms_of(row["timestamp"]) for row in every)
    by_time = {"profiles": {"0": newest}}
    read = {"assign": {"profiles": [0]}, "startingOffsetsByTimestamp": by_time}
    planned = source(shipped, **read)
    [task] = planned.reader(planned.schema()).partitions()
    assert len(task.value) < 4
    at = next(n for n, row in enumerate(every) if ms_of(row["timestamp"]) >= newest)
    assert records(shipped, **read) == every[at:]
    later = {"subscribe": "profiles", "startingTimestamp": newest + 10**9}
    with pytest.raises(InvalidRequestError, match=r"has no record of .* ms or later"):
        records(shipped, **later)
    assert records(shipped, **later, startingOffsetsByTimestampStrategy="latest") == []


def test_the_offsets_say_how_far_a_read_reaches_and_why(shipped: ServedTier) -> None:
    [first, end, *_, why] = reaches(shipped, assign={"clicks": [1]})[1]
    assert (first, why) == (5, f"no finished segment has offset {end}")
    assert offsets(records(shipped, assign={"clicks": [1]}))[-1] == end - 1
    ending = {"clicks": {"1": 10}}
    cut = reaches(shipped, assign={"clicks": [1]}, endingOffsets=ending)[1]
    assert (cut[1], cut[-1]) == (10, "option endingOffsets")


BAD: list[tuple[dict[str, object], str]] = [
    ({}, "option subscribe: give one of"),
    ({"subscribe": "a", "assign": '{"a":[0]}'}, "option assign: give one of"),
    ({"assign": "{"}, "option assign: must be like"),
    ({"assign": '{"a":[-1]}'}, "option assign: must be like"),
    ({"assign": '{"a":0}'}, "option assign: must be like"),
    ({"subscribePattern": "("}, "option subscribePattern: .* no regular expression"),
    ({"subscribe": "a", LEVEL: "committed"}, f"option {LEVEL}: must be one of read_committed"),
    ({"subscribe": "a", "splitBytes": "1"}, "option splitBytes: must be a whole number, 4096 to"),
    ({"subscribe": "a", "startingOffsets": "x"}, "option startingOffsets: must be earliest"),
    ({"subscribe": "a", "startingOffsets": "latest"}, "startingOffsets: a query cannot begin"),
    ({"subscribe": "a", "startingOffsets": '{"a":{"0":-1}}'}, "a query cannot begin at the latest"),
    ({"subscribe": "a", "startingOffsets": '{"a":{"0":true}}'}, "option startingOffsets: must be"),
    ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets: a read cannot end"),
    ({"subscribe": "a", "endingTimestamp": "x"}, "option endingTimestamp: must be a whole number"),
    ({"subscribe": "a", "startOffsets": "x"}, "did you mean startingOffsets"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    made, schema = SedimentRecords(CaseInsensitiveDict(options)), StructType([])
    with pytest.raises(InvalidRequestError, match=message):
        made.reader(schema)


def test_what_the_tier_does_not_have_is_named(shipped: ServedTier) -> None:
    with pytest.raises(InvalidRequestError, match="option subscribe: RLMM knows no topic nowhere"):
        records(shipped, subscribe="nowhere")
    with pytest.raises(InvalidRequestError, match=r"option assign: the tier has no partition .*-9"):
        records(shipped, assign={"clicks": [0, 9]})
    with pytest.raises(InvalidRequestError, match="states some partitions and not clicks-1"):
        records(shipped, subscribe="clicks", startingOffsets={"clicks": {"0": 5}})
    made = source(shipped, subscribe="clicks", endingOffsets={"clicks": {"0": 1}})
    with pytest.raises(InvalidRequestError, match="option endingOffsets: a stream has no end"):
        made.streamReader(made.schema())


def test_a_pattern_names_each_topic_that_it_matches_whole(shipped: ServedTier) -> None:
    found = records(shipped, subscribePattern="pay.*|click")
    assert found == records(shipped, subscribe="payments")
    assert records(shipped, subscribePattern="no.*") == []


def test_tasks_are_about_as_many_as_asked_for(shipped: ServedTier) -> None:
    assert len(tasks(shipped, subscribe="telemetry", minPartitions=12)) >= 12
    assert len(tasks(shipped, subscribe="telemetry", minPartitions=1)) < 12


def test_records_of_overlapping_segments_come_once(tier: ServedTier) -> None:
    [tp] = a_topic()
    log = [plain(at, [b"%d" % at, b"%d" % (at + 1)]) for at in range(0, 10, 2)]
    copied(tier, tp, 0, log[:3])
    copied(tier, tp, 2, log[1:4])
    copied(tier, tp, 4, log[2:5])
    rows = records(tier, subscribe=tp.topic)
    assert [(row["offset"], row["value"]) for row in rows] == [(n, b"%d" % n) for n in range(10)]


def test_records_of_an_overruled_leader_are_left_out(tier: ServedTier) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"]), plain(2, [b"lost", b"lost"])])
    copied(tier, tp, 2, [plain(2, [b"c", b"d", b"e"], leader_epoch=1)], epochs=((0, 0), (1, 2)))
    values = [row["value"] for row in records(tier, subscribe=tp.topic)]
    assert values == [b"a", b"b", b"c", b"d", b"e"]


def test_a_name_means_the_topic_that_is_not_being_deleted(tier: ServedTier) -> None:
    [old], [new] = a_topic("again"), a_topic("again")
    copied(tier, old, 0, [plain(0, [b"old"])])
    earlier = stream(tier, old).initialOffset()
    copied(tier, new, 0, [plain(0, [b"new"])])
    with pytest.raises(InvalidRequestError, match="option subscribe: several topics have the name"):
        records(tier, subscribe="again")
    tier.mark_deleted(old)
    assert [row["value"] for row in records(tier, subscribe="again")] == [b"new"]
    by_id = records(tier, subscribe="again", topicId=uuid_to_text(old.topic_id))
    assert [row["value"] for row in by_id] == [b"old"]
    with pytest.raises(InvalidRangeError, match="failOnDataLoss=false"):
        stream(tier, new).latestOffset(earlier, ReadAllAvailable())


def test_a_read_ends_before_a_hole_and_passes_a_recorded_gap(tier: ServedTier) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    copied(tier, tp, 4, [plain(4, [b"e"])])
    assert offsets(records(tier, subscribe=tp.topic)) == [0, 1]
    begin_at_2 = {"subscribe": tp.topic, "startingOffsets": {tp.topic: {"0": 2}}}
    assert offsets(records(tier, **begin_at_2)) == []
    assert offsets(records(tier, **begin_at_2, failOnDataLoss="false")) == [4]
    tier.rlmm.record_gap(tp, OffsetGap(2, 3), BROKER)
    assert offsets(records(tier, subscribe=tp.topic)) == [0, 1, 4]


def test_a_transaction_that_the_tier_cannot_decide_ends_a_committed_read(tier: ServedTier) -> None:
    [tp] = a_topic()
    mine, other = (
        plain(at, [b"%d" % at], producer_id=7, attributes=TRANSACTIONAL) for at in (1, 3)
    )
    first = [plain(0, [b"0"]), mine, plain(2, [b"2"])]
    copied(tier, tp, 0, first, open_transactions={7: 1})
    committed = {"subscribe": tp.topic, LEVEL: "read_committed"}
    assert offsets(records(tier, **committed)) == [0]
    assert "transaction at offset 1" in reaches(tier, **committed)[0][-1]
    assert offsets(records(tier, subscribe=tp.topic)) == [0, 1, 2]
    aborted = AbortedTxn(7, 1, 4, 5).to_bytes()
    copied(tier, tp, 3, [other, marker(4, 7, ABORT), plain(5, [b"5"])], aborted=aborted)
    assert offsets(records(tier, **committed)) == [0, 2, 5]
    assert offsets(records(tier, subscribe=tp.topic)) == [0, 1, 2, 3, 5]
    later = plain(6, [b"6"], producer_id=7, attributes=TRANSACTIONAL)
    copied(tier, tp, 6, [later, marker(7, 7, COMMIT)])
    assert offsets(records(tier, **committed, **between(tp.topic, 1))) == [2, 5, 6]


def test_a_committed_read_leaves_indexes_far_behind_its_end_alone(tier: ServedTier) -> None:
    [tp] = a_topic()
    for at in range(0, 36, 3):
        mine = plain(at, [b"%d" % at], producer_id=7, attributes=TRANSACTIONAL)
        entry = AbortedTxn(7, at, at + 1, at + 2).to_bytes()
        aborted = entry if at < 33 else entry[:-1]
        copied(
            tier,
            tp,
            at,
            [mine, marker(at + 1, 7, ABORT), plain(at + 2, [b"kept"])],
            aborted=aborted,
        )
    committed = {"subscribe": tp.topic, LEVEL: "read_committed"}
    assert offsets(records(tier, **committed, **between(tp.topic, 0, 6))) == [2, 5]
    with pytest.raises(CorruptSegmentError, match="TRANSACTION index"):
        records(tier, **committed)


def test_a_batch_that_inflates_beyond_the_bound_is_an_error_by_name(tier: ServedTier) -> None:
    [tp] = a_topic()
    payload = bomb(Codec.GZIP, 16 * 1024 * 1024)
    copied(tier, tp, 0, [plain(0, [b"a"]), batch(1, payload=payload, attributes=Codec.GZIP)])
    with pytest.raises(CorruptSegmentError, match=r"offset 1 to .* inflates to more than"):
        records(tier, subscribe=tp.topic, maxBatchBytes=1_000_000)
    first = {"maxBatchBytes": 1_000_000, **between(tp.topic, 0, 1)}
    assert offsets(records(tier, subscribe=tp.topic, **first)) == [0]


def test_a_segment_that_is_deleted_meanwhile_is_named(tier: ServedTier) -> None:
    [tp] = a_topic()
    made = copied(tier, tp, 0, [plain(0, [b"a"])])
    planned = source(tier, subscribe=tp.topic)
    reader = planned.reader(planned.schema())
    [task] = reader.partitions()
    tier.rsm.delete_log_segment_data(made)
    with pytest.raises(RemoteResourceNotFoundError, match="Retention may have deleted it"):
        rows_of(reader, task)


def test_a_stream_reads_what_has_finished_and_a_batch_again_gives_the_same_rows(
    tier: ServedTier,
) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"]), plain(2, [b"c"])])
    reader = stream(tier, tp)
    start = reader.initialOffset()
    name = f"{tp.topic}:{uuid_to_text(tp.topic_id)}"
    assert start == {name: {"0": 0}}
    middle = reader.latestOffset(start, ReadMaxRows(2))
    assert middle == {name: {"0": 2}, EPOCHS: {name: {"0": 0}}}
    assert stream_offsets(reader, start, middle) == [0, 1]
    end = reader.latestOffset(middle, ReadAllAvailable())
    assert end == {name: {"0": 3}, EPOCHS: {name: {"0": 0}}}
    copied(tier, tp, 4, [plain(4, [b"e"])])  # a hole: offset 3
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.partitions(end, end) == []
    copied(tier, tp, 2, [plain(2, [b"c"]), plain(3, [b"d"])])
    last = reader.latestOffset(end, ReadAllAvailable())
    assert last == {name: {"0": 5}, EPOCHS: {name: {"0": 0}}}
    assert stream_offsets(reader, end, last) == [3, 4]
    assert stream_offsets(stream(tier, tp), start, middle) == [0, 1]
    reader.prepareForTriggerAvailableNow()
    copied(tier, tp, 5, [plain(5, [b"f"])])
    assert reader.latestOffset(last, ReadAllAvailable()) == last


def test_a_stream_whose_offsets_are_gone_fails_unless_it_may_lose_them(tier: ServedTier) -> None:
    [tp] = a_topic()
    for at in (0, 2):
        copied(tier, tp, at, [plain(at, [b"a", b"b"])])
    reader = stream(tier, tp)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    tier.rlmm.raise_log_start_offset(tp, 2)
    with pytest.raises(InvalidRangeError, match="failOnDataLoss=false"):
        reader.partitions(start, end)
    assert stream_offsets(stream(tier, tp, failOnDataLoss="false"), start, end) == [2, 3]


@pytest.mark.parametrize("lost", [3, 6], ids=["a part", "everything"])
def test_a_stream_to_the_present_end_fails_if_its_offsets_are_gone(
    tier: ServedTier, lost: int
) -> None:
    [tp] = a_topic()
    for at in (0, 2, 4):
        copied(tier, tp, at, [plain(at, [b"a", b"b"])])
    start = stream(tier, tp).initialOffset()
    read = stream(tier, tp).latestOffset(start, ReadMaxRows(2))
    tier.rlmm.raise_log_start_offset(tp, lost)
    for begin in (start, read):
        reader, may_lose = stream(tier, tp), stream(tier, tp, failOnDataLoss="false")
        reader.prepareForTriggerAvailableNow()
        end = reader.latestOffset(begin, ReadAllAvailable())
        with pytest.raises(InvalidRangeError, match="failOnDataLoss=false"):
            reader.partitions(begin, end)
        assert stream_offsets(may_lose, begin, end) == [*range(lost, 6)]
    # What comes after the beginning of the query is of the next one.
    copied(tier, tp, 6, [plain(6, [b"g"])])
    assert from_json(reader.latestOffset(end, ReadAllAvailable())) == {tp: 6}


def test_a_stream_of_a_partition_that_was_removed_fails_unless_it_may_lose_it(
    tier: ServedTier,
) -> None:
    [removed], [other] = a_topic(), a_topic()
    made, _ = (copied(tier, tp, 0, [plain(0, [b"a", b"b"])]) for tp in (removed, other))
    pattern = f"{removed.topic}|{other.topic}"

    def reader(**options: object) -> Any:
        made = source(tier, subscribePattern=pattern, startingOffsets="earliest", **options)
        return made.streamReader(made.schema())

    start = reader().initialOffset()
    read = reader().latestOffset(start, ReadMaxRows(2))
    tier.remove(removed, made)
    for prepare in (False, True):
        fails, may_lose = reader(), reader(failOnDataLoss="false")
        for each in (fails, may_lose) if prepare else ():
            each.prepareForTriggerAvailableNow()
        with pytest.raises(InvalidRangeError, match=f"{removed.topic}-0: .* failOnDataLoss=false"):
            fails.latestOffset(read, ReadAllAvailable())
        end = may_lose.latestOffset(read, ReadAllAvailable())
        assert stream_offsets(may_lose, read, end) == [1]


def test_a_batch_again_has_the_same_rows_beside_a_segment_that_overlaps(tier: ServedTier) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"]), plain(2, [b"c"])])
    start = stream(tier, tp).initialOffset()
    end = stream(tier, tp).latestOffset(start, ReadMaxRows(2))
    before = stream_rows(stream(tier, tp), start, end)
    # The same leader's log again, rolled elsewhere.
    copied(tier, tp, 1, [plain(1, [b"b"]), plain(2, [b"c"]), plain(3, [b"d"])])
    assert stream_rows(stream(tier, tp), start, end) == before
    last = stream(tier, tp).latestOffset(end, ReadAllAvailable())
    assert stream_offsets(stream(tier, tp), end, last) == [2, 3]


def test_the_first_batch_of_a_new_partition_again_lacks_nothing_without_a_word(
    tier: ServedTier,
) -> None:
    old, new = a_topic(partitions=2)
    copied(tier, old, 0, [plain(0, [b"a"])])
    start = stream(tier, old).initialOffset()
    for at in (0, 2):
        copied(tier, new, at, [plain(at, [b"a", b"b"])])
    end = stream(tier, old).latestOffset(start, ReadAllAvailable())
    name = f"{old.topic}:{uuid_to_text(old.topic_id)}"
    assert end == {
        name: {"0": 1, "1": 4}, EPOCHS: {name: {"0": 0, "1": 0}}, FIRST: {name: {"1": 0}}
    }  # fmt: skip
    assert stream_offsets(stream(tier, old), start, end) == [0, 0, 1, 2, 3]
    assert stream(tier, old).latestOffset(end, ReadAllAvailable()) == end
    tier.rlmm.raise_log_start_offset(new, 2)
    with pytest.raises(InvalidRangeError, match="offsets 0 to 3 were to be read"):
        stream(tier, old).partitions(start, end)
    may_lose = stream(tier, old, failOnDataLoss="false")
    assert stream_offsets(may_lose, start, end) == [0, 2, 3]
    copied(tier, new, 4, [plain(4, [b"e"])])
    last = stream(tier, old).latestOffset(end, ReadAllAvailable())
    assert FIRST not in last
    assert stream_offsets(stream(tier, old), end, last) == [4]


@pytest.mark.parametrize("since", [1, 2], ids=["in the batch", "behind the batch"])
def test_a_batch_whose_records_were_overruled_fails_by_name(tier: ServedTier, since: int) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a"]), plain(1, [b"b"])])
    start = stream(tier, tp).initialOffset()
    end = stream(tier, tp).latestOffset(start, ReadAllAvailable())
    before = stream_rows(stream(tier, tp), start, end)
    # A leader that had not all of it was elected, and wrote on.
    epochs = ((0, 0), (1, since))
    batches = [plain(at, [b"new"], leader_epoch=1) for at in range(since, 4)]
    copied(tier, tp, since, batches, epochs=epochs)
    if since == 2:
        assert stream_rows(stream(tier, tp), start, end) == before
        last = stream(tier, tp).latestOffset(end, ReadAllAvailable())
        assert stream_offsets(stream(tier, tp), end, last) == [2, 3]
        return
    last = stream(tier, tp).latestOffset(end, ReadAllAvailable())
    for first, until in ((start, end), (end, last)):
        with pytest.raises(InvalidRangeError, match=r"offset 1 of the leader epoch 0, .* epoch 1"):
            stream(tier, tp).partitions(first, until)
    may_lose = stream(tier, tp, failOnDataLoss="false")
    assert stream_offsets(may_lose, end, last) == [2, 3]


def stream_rows(reader: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    return [row for each in reader.partitions(start, end) for row in rows_of(reader, each)]


def stream(tier: ServedTier, tp: TopicIdPartition, **options: object) -> Any:
    made = source(tier, **{"subscribe": tp.topic, "startingOffsets": "earliest", **options})
    return made.streamReader(made.schema())


def stream_offsets(reader: Any, start: Any, end: Any) -> list[int]:
    planned: Iterator[Any] = iter(reader.partitions(start, end))
    return [offset for each in planned for offset in offsets(rows_of(reader, each))]


def test_bytes_before_and_after_a_range_are_not_requested(shipped: ServedTier) -> None:
    planned = source(shipped, assign={"telemetry": [0]}, **between("telemetry", 20, 22))
    [task] = planned.reader(planned.schema()).partitions()
    [piece] = task.value
    assert 0 < piece.start_position < piece.end_position
    assert piece.size_bytes < piece.extent.segment.segment_size_in_bytes // 2


class CountingRsm(Wrapper[Any]):
    """RSM, and how many logs were streamed."""

    def __init__(self, rsm: Any) -> None:
        super().__init__(rsm)
        self.streamed = 0

    def fetch_log_segment(self, *arguments: Any) -> Iterator[bytes]:
        self.streamed += 1
        chunks: Iterator[bytes] = self.real.fetch_log_segment(*arguments)
        return chunks


def test_logs_are_read_from_the_store_itself_and_streamed_where_it_is_damaged(
    s3: S3Endpoint, tier: ServedTier
) -> None:
    bucket = f"direct-{uuid4().hex[:8]}"
    s3.ensure_bucket(bucket)
    settings = RsmSettings(
        backend="s3",
        endpoint=s3.endpoint,
        region=s3.region,
        bucket=bucket,
        access_key=SecretStr(s3.access_key),
        secret_key=SecretStr(s3.secret_key),
        secure=False,
        direct_reads=True,
    )
    [tp] = a_topic()
    values = [bytes([number % 251]) * 500_000 for number in range(5)]
    batches = [plain(at, [value]) for at, value in enumerate(values)]
    size = sum(map(len, batches))
    with serving(settings) as served:
        own = ServedTier(served.client, tier.rlmm, served.address, tier.rlmm_address)
        made = copied(own, tp, 0, batches)
        rows = records(own, subscribe=tp.topic, directReads="true", splitBytes=1_000_000)
        assert [row["value"] for row in rows] == values
        rsm = CountingRsm(served.client)
        with closing(DirectReader(rsm)) as reader:
            log = b"".join(reader.fetch_log_segment(made, 0, size))
            assert log == b"".join(batches)
            middle = b"".join(reader.fetch_log_segment(made, 1_048_000, 1_049_000))
            assert (middle, rsm.streamed) == (log[1_048_000:1_049_001], 0)
            [key] = (k for k in names(s3, bucket) if k.endswith(".log"))
            damaged = log[:2_000_000] + b"x" + log[2_000_001:]
            s3.client().put_object(bucket, key, BytesIO(damaged), len(damaged))
            good = b"".join(reader.fetch_log_segment(made, 0, 1_000_000))
            assert (good, rsm.streamed) == (log[:1_000_001], 0)
            with pytest.raises(CorruptSegmentError, match="chunk"):
                list(reader.fetch_log_segment(made, 0, size))
            assert rsm.streamed == 1
    with serving(settings.model_copy(update={"direct_reads": False})) as served:
        rsm = CountingRsm(served.client)
        with closing(DirectReader(rsm)) as reader:
            assert next(iter(reader.fetch_log_segment(made, 0, 9))) == log[:10]
        assert rsm.streamed == 1


@pytest.mark.deep
def test_compressed_and_encrypted_logs_are_read_as_they_were(
    s3: S3Endpoint, tier: ServedTier, tmp_path: Path
) -> None:
    """The store itself is of no use to their readers: they stream."""
    settings = encrypting(settings_for(s3, {"direct_reads": True}), tmp_path, ZSTD)
    [tp] = a_topic()
    values = [json_log(500_000 + number) for number in range(5)]
    with serving(settings) as served:
        own = ServedTier(served.client, tier.rlmm, served.address, tier.rlmm_address)
        copied(own, tp, 0, [plain(at, [value]) for at, value in enumerate(values)])
        for direct_reads in ("true", "false"):
            split = tasks(own, subscribe=tp.topic, directReads=direct_reads, splitBytes=1_000_000)
            assert [row["value"] for rows in split for row in rows] == values
            assert len(split) > 1


def names(s3: S3Endpoint, bucket: str) -> list[str]:
    return [str(each.object_name) for each in s3.client().list_objects(bucket, recursive=True)]


def test_a_read_of_offsets_that_are_stated_fails_without_one(tier: ServedTier) -> None:
    [tp] = a_topic()
    copied(tier, tp, 0, [plain(0, [b"a", b"b"])])
    read = {"subscribe": tp.topic}
    assert offsets(records(tier, **read, **between(tp.topic, 0, 2))) == [0, 1]
    with pytest.raises(InvalidRangeError, match=r"offsets 0 to 2 were to be read.* has 0 to 1;"):
        records(tier, **read, **between(tp.topic, 0, 3))
    copied(tier, tp, 2, [plain(2, [b"c"])])
    assert offsets(records(tier, **read, **between(tp.topic, 0, 3))) == [0, 1, 2]
    tier.rlmm.raise_log_start_offset(tp, 2)
    for end in (-1, 3):
        lost = {**read, **between(tp.topic, 0, end)}
        with pytest.raises(InvalidRangeError, match="failOnDataLoss=false"):
            records(tier, **lost)
        assert offsets(records(tier, **lost, failOnDataLoss="false")) == [2]


def test_a_stream_begins_at_the_end_unless_it_is_told_otherwise(tier: ServedTier) -> None:
    [tp] = a_topic()
    times_ms = (500, 900)
    log = [plain(at, [b"a"], timestamp_ms=ms) for at, ms in enumerate(times_ms)]
    copied(tier, tp, 0, log)
    for options, first in (
        ({"startingOffsets": ""}, 2),
        ({"startingOffsets": "latest"}, 2),
        ({"startingOffsets": {tp.topic: {"0": 1}}}, 1),
        ({"startingOffsets": {tp.topic: {"0": -1}}}, 2),
        ({"startingOffsets": {tp.topic: {"0": 7}}}, 7),
        ({"startingTimestamp": 700}, 1),
    ):
        assert from_json(stream(tier, tp, **options).initialOffset()) == {tp: first}
