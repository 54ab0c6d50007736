"""The oldest release that the plugin supports: what it writes is tiered, read back and deleted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.kafka_log_content import PAYMENTS, produce_payments
from tests.harness.world import World
from tests.plugin.deployment import Deployment, tiering_broker
from tests.plugin.seen import seen

pytestmark = pytest.mark.plugin

OLDEST_VERSION = "4.3.1"


@pytest.fixture(scope="module")
def deployment(
    jar: Path, services: World, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("broker")
    with tiering_broker(jar, services, directory, version=OLDEST_VERSION) as made:
        yield made


def test_transactions_are_moved_read_and_deleted(deployment: Deployment) -> None:
    partitions = deployment.create(PAYMENTS)
    produce_payments(deployment.cluster, 0)
    for partition in partitions:
        partition.wait_until_stable()
    before = [seen(partition) for partition in partitions]
    for partition in partitions:
        partition.wait_until_tiered()
    deployment.cluster.configure(PAYMENTS.name, local_retention_bytes="1")
    for partition, expected in zip(partitions, before, strict=True):
        partition.wait_until_only_active_is_local()
        assert seen(partition, list(expected.found_for_time)) == expected, partition
        partition.assert_finished_is_complete()
        partition.assert_every_object_has_a_row()
    calls = deployment.calls_of_rsm("FetchLogSegment")
    assert calls >= sum(len(partition.finished()) for partition in partitions)
    deployment.cluster.delete(PAYMENTS.name)
    for partition in partitions:
        partition.wait_until_nothing_is_left()
