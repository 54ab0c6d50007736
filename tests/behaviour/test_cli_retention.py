"""Test `sediment retention`: the result of the rules, figure by figure, without any change."""

from collections.abc import Iterator

import pytest

from services.api.ids import RemoteLogSegmentId, TopicIdPartition, random_uuid, uuid_to_text
from services.api.lineage import Lineage
from services.api.partitions import (
    PartitionReport,
    PolledLog,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import PartitionLeadership, all_segments
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.local.postgres import EmbeddedPostgres
from tests.harness.processes import RlmmProcess, running_rlmm

EPOCHS = segment_leader_epochs([(0, 0)])
MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


@pytest.fixture(scope="module")
def rlmm(
    postgres: EmbeddedPostgres, migrated_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RlmmProcess]:
    url = postgres.create_database("cli_retention", template=migrated_database)
    with running_rlmm(url, tmp_path_factory.mktemp("rlmm")) as made:
        yield made
    postgres.drop_database("cli_retention")


@pytest.fixture
def tp(rlmm: RlmmProcess) -> TopicIdPartition:
    """Provide three finished segments of 100 bytes: 0 to 9, 10 to 19, 20 to 29.

    The first two are old. A leader has reported 50 bytes more.
    """
    topic_id = random_uuid()
    while uuid_to_text(topic_id).startswith("-"):
        topic_id = random_uuid()
    name = TopicIdPartition(topic_id, f"orders-{topic_id.hex[:8]}", 0)
    rlmm.client.on_partition_leadership_changes([PartitionLeadership(name)], [], broker_id=1)
    now_ms = rlmm.client.partition_state(name).value.read_at_ms
    for base, max_timestamp_ms in ((0, 1000), (10, 2000), (20, now_ms)):
        add_finished(rlmm, name, base, max_timestamp_ms)
    return name


def report(rlmm: RlmmProcess, name: TopicIdPartition) -> None:
    outcome = PartitionReport(
        topic_id_partition=name,
        broker_id=1,
        leader_epoch=0,
        report_number=1,
        lineage=Lineage(EPOCHS),
        local_log_start_offset=0,
        log_end_offset=35,
        high_watermark=35,
        last_stable_offset=35,
        only_local_bytes=50,
        copied_through_offset=29,
    )
    rlmm.client.report_partition_state([outcome])


def add_finished(
    rlmm: RlmmProcess, name: TopicIdPartition, base: int, max_timestamp_ms: int
) -> None:
    segment = RemoteLogSegmentMetadata(
        remote_log_segment_id=RemoteLogSegmentId(name, random_uuid()),
        start_offset=base,
        end_offset=base + 9,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=1,
        event_timestamp_ms=max_timestamp_ms,
        segment_leader_epochs=segment_leader_epochs([(0, base)]),
        segment_size_in_bytes=100,
    )
    rlmm.client.add_remote_log_segment_metadata(segment)
    rlmm.client.update_remote_log_segment_metadata(
        RemoteLogSegmentMetadataUpdate(
            segment.remote_log_segment_id,
            max_timestamp_ms,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            broker_id=1,
            custom_metadata=b"m",
        )
    )


def text(name: TopicIdPartition) -> str:
    return f"{name.topic}-{name.partition}"


def put(rlmm: RlmmProcess, name: TopicIdPartition, **settings: str) -> None:
    entries = {key.replace("_", "."): value for key, value in settings.items()}
    rlmm.client.put_topic_config(name.topic_id, entries)


def test_it_shows_the_rule_and_figures_of_each_segment(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    report(rlmm, tp)
    put(rlmm, tp, retention_ms="3600000")
    before = list(all_segments(rlmm.client, tp)), rlmm.client.partition_state(tp).revision
    (answer,) = rlmm.answers("retention", text(tp))
    assert [d["start_offset"] for d in answer["deletions"]] == [0, 10]
    assert {d["reason"] for d in answer["deletions"]} == {"retention.ms breached"}
    assert "max_timestamp 1000" in answer["deletions"][0]["detail"]
    assert (answer["log_start_offset"], answer["new_log_start_offset"]) == (0, 20)
    assert answer["deleted_size_bytes"] == 200
    assert 0 <= answer["report_age_ms"] < 60_000
    assert before == (list(all_segments(rlmm.client, tp)), rlmm.client.partition_state(tp).revision)


def test_size_is_judged_by_the_stored_report(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    report(rlmm, tp)
    put(rlmm, tp, retention_bytes="250")
    (answer,) = rlmm.answers("retention", text(tp))
    assert [d["start_offset"] for d in answer["deletions"]] == [0]
    put(rlmm, tp, retention_bytes="251")
    (answer,) = rlmm.answers("retention", text(tp))
    assert answer["deletions"] == []


def test_without_a_report_it_says_so(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    put(rlmm, tp, retention_ms="0")
    (answer,) = rlmm.answers("retention", text(tp))
    assert (answer["deletions"], answer["report_age_ms"]) == ([], None)
    done = rlmm.sediment("retention", text(tp))
    assert done.returncode == 0
    assert "no leader has reported" in done.stderr


def test_topic_tiered_by_a_broker_shows_the_deletions_expected_of_kafka(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    log = PolledLog(tp, 3, 7, Lineage(EPOCHS), log_start_offset=15, high_watermark=40)
    assert rlmm.client.report_partition_state([], [log]) == []
    put(rlmm, tp, retention_ms="0")
    (answer,) = rlmm.answers("retention", text(tp))
    assert (answer["deletions"], answer["report_age_ms"]) == ([], None)
    polled = answer["polled_log"]
    assert (polled["log_start_offset"], polled["high_watermark"]) == (15, 40)
    assert polled["leader_epochs"] == [[0, 0]]
    first = next(iter(all_segments(rlmm.client, tp)))
    assert polled["expected_deletions"] == [uuid_to_text(first.remote_log_segment_id.id)]
    shown = rlmm.sediment("retention", text(tp)).stderr
    assert "Kafka owns its retention" in shown
    assert "Kafka is expected to delete 1 segments (100 B) below its log start" in shown
    assert "no leader has reported" not in shown


def test_a_hold_and_another_owner_are_shown(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    report(rlmm, tp)
    put(rlmm, tp, retention_ms="0", sediment_hold="true", sediment_retention_owner="sweep")
    (answer,) = rlmm.answers("retention", text(tp))
    assert (answer["hold"], answer["retention_owner"]) == (True, "sweep")
    assert (answer["deletions"], len(answer["notes"])) == ([], 1)


def test_that_a_disabled_topic_goes_whole_is_shown(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    report(rlmm, tp)
    put(rlmm, tp, remote_storage_enable="false", remote_log_delete_on_disable="true")
    (answer,) = rlmm.answers("retention", text(tp))
    assert answer["deletions"] == []
    (note,) = answer["notes"]
    assert "its leader's RLM deletes all of it" in note
    assert note in rlmm.sediment("retention", text(tp)).stderr


def test_table_shows_the_due_segments(rlmm: RlmmProcess, tp: TopicIdPartition) -> None:
    report(rlmm, tp)
    put(rlmm, tp, retention_ms="3600000")
    done = rlmm.sediment("retention", text(tp))
    assert done.returncode == 0
    assert "rlm (default)" in done.stdout
    assert "10-19" in done.stdout
    assert done.stderr.splitlines() == ["2 segments (200 B) are due; nothing was changed"]


def test_without_names_it_lists_all_that_are_not_being_deleted(
    rlmm: RlmmProcess, tp: TopicIdPartition
) -> None:
    gone = TopicIdPartition(tp.topic_id, tp.topic, 1)
    event = RemotePartitionDeleteMetadata(gone, MARKED, 0, 1)
    rlmm.client.put_remote_partition_delete_metadata(event)
    found = [(a["topic"], a["partition"]) for a in rlmm.answers("retention")]
    assert (tp.topic, 0) in found
    assert (tp.topic, 1) not in found


@pytest.mark.deep
@pytest.mark.parametrize("name", ["nowhere-0", "nowhere", "AAAAAAAAAAAAAAAAAAAAAQ:nowhere-0"])
def test_unknown_partition_is_refused(rlmm: RlmmProcess, name: str) -> None:
    assert rlmm.refusal("retention", name).startswith("sediment: ")
