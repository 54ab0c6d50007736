import pytest

from services.api.errors import InvalidRequestError
from services.api.lineage import Lineage, parse_checkpoint
from services.api.remote_log_manager import (
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionRole,
    PartitionStops,
)
from services.rlm.partition import LED_BY_LOG, Leadership
from services.rlm.roles.sources import StaticSource
from tests.unit.rlm.kafka_bytes import NAME

LEADER = PartitionRole.LEADER
LINEAGE = parse_checkpoint("0\n2\n0 0\n4 10\n")


@pytest.mark.parametrize(
    ("reported", "epoch", "overtaken"),
    [(None, 4, False), (3, 3, True), (4, 4, False), (9, 9, False)],
)
def test_the_epoch_of_the_role_counts_unless_the_log_is_of_a_later_leader(
    reported: int | None, epoch: int, overtaken: bool
) -> None:
    leadership = Leadership(LEADER, reported)
    assert (leadership.epoch_of(LINEAGE), leadership.is_overtaken(LINEAGE)) == (epoch, overtaken)


def test_log_without_epochs_has_no_leader_epoch_and_overtakes_none() -> None:
    assert LED_BY_LOG.epoch_of(Lineage()) is None
    assert not Leadership(LEADER, 0).is_overtaken(Lineage())


@pytest.mark.parametrize("epoch", [-1, 2**31])
def test_a_leader_epoch_is_an_int32_from_0_on(epoch: int) -> None:
    with pytest.raises(InvalidRequestError, match="leader_epoch"):
        LeadershipChange(NAME, epoch, LEADER)


class Told:
    def __init__(self) -> None:
        self.deltas: list[LeadershipDelta] = []
        self.stops: list[PartitionStops] = []

    def apply(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        self.deltas.append(delta)
        return [None] * len(delta.changes)

    def stop(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        self.stops.append(stops)
        return [None] * len(stops.partitions)


def test_static_source_announces_added_and_removed_partitions_once() -> None:
    reported = Told()
    source = StaticSource(reported)
    for found in ([NAME], [NAME], [], [], [NAME]):
        source.update(found)
    assert [delta.changes for delta in reported.deltas] == [
        (LeadershipChange(NAME, None, LEADER),)
    ] * 2
    assert [[s.topic_id_partition for s in stops.partitions] for stops in reported.stops] == [
        [NAME]
    ]
