"""Kafka's own test classes, and an acceptance suite for what they leave out, over the plugin.

The classes come from Kafka's published test jar and run unchanged. What they build as a
TopicBasedRemoteLogMetadataManager is the plugin, loaded as a broker loads it; see
RemoteLogMetadataManagerTestUtils in kafka_plugin/acceptance.
"""

import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from demos.kafka_broker import plugin_settings
from services.local.stack import ServiceProcess, rlmm_settings
from tests.harness.local_servers import DatabaseServer
from tests.harness.world import World
from tests.plugin.acceptance import Case, own_methods, run_acceptance, shown

# One Maven run, which all of them wait for, starts 16 clusters.
pytestmark = [pytest.mark.plugin, pytest.mark.long, pytest.mark.timeout(900)]

KAFKAS_CASES = {
    "RemoteLogMetadataManagerTest": {"testFetchSegments", "testRemotePartitionDeletion"},
    "RemoteLogSegmentLifecycleTest": {
        "testRemoteLogSegmentLifeCycle",
        "testCacheSegmentWithCopySegmentStartedState",
        "testCacheSegmentWithCopySegmentFinishedState",
        "testCacheSegmentWithDeleteSegmentStartedState",
        "testCacheSegmentsWithDeleteSegmentFinishedState",
        "testCacheListSegments",
    },
}
RUNS = ("()[1]", "()[2]")
"""Each case runs on a cluster with controllers of its own, and on one with combined nodes."""

REFUSED_CASE = "testRemotePartitionDeletion"
REFUSED_STEP = "RemoteLogMetadataManagerTest.lambda$testRemotePartitionDeletion$4("
"""Its last step: the partition's deletion is finished while a segment remains."""

SHARING_ONE_PARTITION = len(KAFKAS_CASES["RemoteLogMetadataManagerTest"]) * len(RUNS)

CALLS = {
    ("AddRemoteLogSegmentMetadata", "OK"): 13,
    ("UpdateRemoteLogSegmentMetadata", "OK"): 15,
    ("PutRemotePartitionDeleteMetadata", "OK"): 2,
    ("PutRemotePartitionDeleteMetadata", "FAILED_PRECONDITION"): 1,
    ("GetRemoteLogSegmentMetadata", "OK"): 20,
    ("GetHighestOffsetForEpoch", "OK"): 9,
    ("ListRemoteLogSegments", "OK"): 11,
}
"""How often the two classes call, in one run of each case; counted in their source."""


NOTICE = "OnPartitionLeadershipChanges"
"""Sent in the background, until it is taken or the manager closed: it has no exact count."""

LOOK_UP = ("GetRemoteLogSegmentMetadata", "OK")
"""Some may be answered from memory, while WatchPartitions reports changes."""

Row = tuple[str | None, ...]

EVENTS: dict[Row, int] = {
    (None, "COPY_SEGMENT_STARTED"): 13,
    ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"): 10,
    ("COPY_SEGMENT_STARTED", "DELETE_SEGMENT_STARTED"): 2,
    ("COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"): 1,
    ("DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED"): 2,
    (None, "DELETE_PARTITION_MARKED"): 1,
    ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED"): 1,
}
"""What these calls leave in the audit trail."""


@dataclass(frozen=True)
class FreshRlmm:
    """An RLMM on a database of its own."""

    process: ServiceProcess
    database_url: str

    def calls(self) -> Counter[tuple[str, str]]:
        """How many calls it has served, by method and status."""
        with urlopen(f"http://{self.process.announcement.metrics}/metrics", timeout=10) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        counted = Counter[tuple[str, str]]()
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == "sediment_rpc_seconds_count":
                method = sample.labels["method"].rpartition("/")[2]
                counted[method, sample.labels["code"]] += int(sample.value)
        return counted

    def count(self, query: str) -> Counter[Row]:
        """The rows that a query answers, each with how often it is there."""
        engine = create_engine(self.database_url)
        try:
            with engine.connect() as connection:
                return Counter(tuple(row) for row in connection.execute(text(query)))
        finally:
            engine.dispose()


@pytest.fixture(scope="module")
def fresh_rlmms(
    tmp_path_factory: pytest.TempPathFactory, postgres: DatabaseServer, migrated_database: str
) -> Iterator[list[FreshRlmm]]:
    """As many as Kafka's cases need that use one partition, each on a cluster that is new."""
    directory = tmp_path_factory.mktemp("rlmms")
    names = [f"kafka_case_{uuid.uuid4().hex}" for _ in range(SHARING_ONE_PARTITION)]
    with ExitStack() as cleanup:
        made = []
        for name in names:
            url = postgres.create_database(name, template=migrated_database)
            cleanup.callback(postgres.drop_database, name)
            process = ServiceProcess("rlmm", rlmm_settings(url), directory / name)
            made.append(FreshRlmm(process, url))

        def start(rlmm: FreshRlmm) -> None:
            rlmm.process.start()
            cleanup.callback(rlmm.process.kill)

        with ThreadPoolExecutor() as pool:
            list(pool.map(start, made))
        yield made


@pytest.fixture(scope="module")
def cases(
    jar: Path,
    services: World,
    fresh_rlmms: list[FreshRlmm],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Case]:
    """Every run of every test method, Kafka's and ours."""
    properties = {
        **plugin_settings(jar, services.rsm.address, services.rlmm.address),
        "kafka.cases.endpoints": ",".join(rlmm.process.address for rlmm in fresh_rlmms),
    }
    return run_acceptance(properties, tmp_path_factory.mktemp("acceptance"))


@pytest.fixture(scope="module")
def kafkas(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.class_name in KAFKAS_CASES]


@pytest.fixture(scope="module")
def ours(cases: list[Case]) -> list[Case]:
    return [case for case in cases if case.class_name not in KAFKAS_CASES]


def test_every_case_of_kafkas_classes_ran(kafkas: list[Case]) -> None:
    expected = [
        (class_name, method, run)
        for class_name, methods in KAFKAS_CASES.items()
        for method in methods
        for run in RUNS
    ]
    ran = [(case.class_name, case.method, case.run) for case in kafkas]
    assert sorted(ran) == sorted(expected)


def test_kafkas_cases_pass_except_for_the_declared_difference(kafkas: list[Case]) -> None:
    unexpected = [c for c in kafkas if c.outcome != "passed" and c.method != REFUSED_CASE]
    assert not unexpected, shown(unexpected)


def test_deletion_of_a_partition_differs_in_its_last_step_alone(kafkas: list[Case]) -> None:
    refused = [case for case in kafkas if case.method == REFUSED_CASE]
    assert [case.outcome for case in refused] == ["failure"] * len(RUNS), shown(refused)
    for case in refused:
        assert REFUSED_STEP in case.text, shown([case])
        assert "RemoteStorageException: " in case.text, shown([case])
        assert "still has segments" in case.text, shown([case])


@pytest.mark.usefixtures("kafkas")
def test_every_answer_came_from_rlmm(fresh_rlmms: list[FreshRlmm]) -> None:
    served = Counter[tuple[str, str]]()
    for rlmm in fresh_rlmms:
        served += rlmm.calls()
    asked = {call: n for call, n in served.items() if call[0] not in {NOTICE, "WatchPartitions"}}
    made = {call: count * len(RUNS) for call, count in CALLS.items()}
    assert 0 < asked.pop(LOOK_UP) <= made.pop(LOOK_UP)
    assert asked == made


@pytest.mark.usefixtures("kafkas")
def test_every_event_is_in_the_database(fresh_rlmms: list[FreshRlmm]) -> None:
    query = """
        SELECT from_state, to_state FROM events WHERE to_state IS NOT NULL
    """
    events = Counter[Row]()
    for rlmm in fresh_rlmms:
        events += rlmm.count(query)
    assert events == {event: count * len(RUNS) for event, count in EVENTS.items()}


@pytest.mark.usefixtures("kafkas")
def test_refused_step_left_partition_and_segment(fresh_rlmms: list[FreshRlmm]) -> None:
    query = """
        SELECT p.delete_state, s.state FROM partitions p JOIN segments s USING (topic_id, partition)
        WHERE p.delete_state IS NOT NULL
    """
    left = Counter[Row]()
    for rlmm in fresh_rlmms:
        left += rlmm.count(query)
    assert left == {("DELETE_PARTITION_STARTED", "COPY_SEGMENT_FINISHED"): len(RUNS)}


def test_acceptance_suite_passes(ours: list[Case]) -> None:
    unexpected = [case for case in ours if case.outcome != "passed"]
    assert not unexpected, shown(unexpected)


def test_acceptance_suite_ran_whole(ours: list[Case]) -> None:
    assert {case.name for case in ours} == own_methods()
