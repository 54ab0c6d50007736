"""RLM answers for a tier of a broker as the broker does: its reads, offsets and transactions."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.api.offset_queries import OffsetQueries, OffsetQuery, OffsetService, SpecialTime
from services.api.remote_log_manager import IsolationLevel
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.broker_answers import BrokerAnswers, broker_answers
from tests.harness.committed_reads import committed_offsets
from tests.harness.eventually import eventually_holds
from tests.harness.kafka_client import CLIENT_TIMEOUT_S, NOW, Record, send_batch
from tests.plugin.deployment import Deployment, Partition
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = pytest.mark.plugin

LEVELS = tuple(IsolationLevel)


@pytest.fixture(scope="module")
def partition(deployment: Deployment) -> Partition:
    """Aborted and committed transactions in segments that only the tier has, and after them."""
    made = deployment.create_one("reads-as-kafka", local_retention_bytes="1")
    made.produce()
    with deployment.cluster.transactional(made.name.topic) as producer:
        for number in range(8):
            producer.begin_transaction()
            for part in range(3):
                value = f"{number} {part}".encode() * 300
                send_batch(producer, made.topic, 0, [Record(b"key", value, NOW)])
            if number % 2:
                producer.commit_transaction(CLIENT_TIMEOUT_S)
            else:
                producer.abort_transaction(CLIENT_TIMEOUT_S)
    made.wait_until_stable()
    made.wait_until_moved()
    return made


@pytest.fixture(scope="module")
def kafka(partition: Partition) -> Iterator[BrokerAnswers]:
    with broker_answers(partition.deployment.broker.bootstrap_servers) as asked:
        yield asked


@pytest.fixture(scope="module")
def rlm(partition: Partition, kafka: BrokerAnswers) -> Iterator[OffsetService]:
    """RLM over the broker's disk and its tier, once the broker has written its high watermark."""
    deployment = partition.deployment
    with ExitStack() as clients:
        rsm = clients.enter_context(deployment.world.storage())
        rlmm = clients.enter_context(deployment.world.metadata())
        made = BrokerRemoteLogManager(deployment.broker.log_dirs, rsm, rlmm)
        latest = (OffsetQuery(partition.name, SpecialTime.LATEST),)

        def is_written() -> None:
            (found,) = made.list_offsets(OffsetQueries(latest))
            assert found.offset == kafka.offsets(partition.name, [SpecialTime.LATEST])[0][1]

        eventually_holds(is_written, DEADLINE_MS)
        yield made


@pytest.mark.parametrize("isolation", LEVELS)
def test_every_special_value_and_some_times(
    rlm: OffsetService, kafka: BrokerAnswers, partition: Partition, isolation: IsolationLevel
) -> None:
    first, *_ = kafka.offsets(partition.name, [0])[0]
    last, *_ = kafka.offsets(partition.name, [SpecialTime.MAX_TIMESTAMP])[0]
    span = range(first - 1, last + 2, max((last - first) // 20, 1))
    asked = [*SpecialTime, first, last, *span]
    queries = tuple(OffsetQuery(partition.name, time_ms) for time_ms in asked)
    answers = rlm.list_offsets(OffsetQueries(queries, isolation))
    here = [
        (a.timestamp_ms, a.offset, -1 if a.leader_epoch is None else a.leader_epoch)
        for a in answers
    ]
    there = kafka.offsets(partition.name, asked, isolation)
    assert dict(zip(asked, here, strict=True)) == dict(zip(asked, there, strict=True))


def test_committed_records_of_the_tier(rlm: OffsetService, partition: Partition) -> None:
    name, cluster = partition.name, partition.deployment.cluster
    found, _ = committed_offsets(rlm, name)
    read = cluster.read(name.topic, name.partition, "read_committed")
    assert sorted(found) == [message.offset() for message in read]
