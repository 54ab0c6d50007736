"""What must hold of every story of three brokers."""

from collections import Counter

from tests.plugin.scenes import Story
from tests.plugin.seen import ISOLATION_LEVELS


def assert_acknowledged_are_read_once(story: Story, at_least: int) -> None:
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        read = story.as_led_by[str(partition), "read_uncommitted"][0]
        assert len(said.records) > at_least, partition
        got = {record.offset: record for record in read}
        sent = {
            offset: (record.key, record.value, tuple(record.headers))
            for offset, record in said.records.items()
        }
        assert {
            offset: (got[offset].key, got[offset].value, got[offset].headers) for offset in sent
        } == sent, partition
        others = [record.key for record in read if record.offset not in sent]
        assert set(others) <= said.in_doubt, partition
        assert set(Counter(record.key for record in read).values()) == {1}, partition


def assert_only_aborted_are_omitted(story: Story, at_least: int) -> None:
    """Of what `read_committed` returns; each way of ending has so many records."""
    for partition, said in zip(story.partitions, story.acknowledged, strict=True):
        everything = story.as_led_by[str(partition), "read_uncommitted"][0]
        committed = story.as_led_by[str(partition), "read_committed"][0]
        assert len(said.committed) > at_least, partition
        assert len(said.aborted) > at_least, partition
        offsets = {record.offset for record in committed}
        assert offsets.isdisjoint(said.aborted), partition
        assert said.records.keys() - said.aborted - said.undecided <= offsets, partition
        assert [r for r in everything if r.offset in offsets] == committed, partition


def assert_every_leader_serves_the_same(story: Story, leaders: int) -> None:
    for what, reads in story.as_led_by.items():
        assert len(reads) == leaders
        assert reads == [reads[0]] * leaders, what


def assert_no_consumer_read_a_wrong_record(story: Story, passes: int) -> None:
    for consumer in story.consumers:
        assert consumer.failures == []
        assert consumer.passes >= passes, consumer
    wanted = [(str(p), level) for p in story.partitions for level in ISOLATION_LEVELS]
    for consumer, what in zip(story.consumers, wanted, strict=True):
        final = {record.offset: record for record in story.as_led_by[what][0]}
        assert consumer.seen.items() <= final.items(), consumer


def assert_tier_and_store_agree(story: Story) -> None:
    for partition in story.partitions:
        partition.assert_nothing_wrong()
    assert story.reconciled["failures"] == []
    anomalies = story.reconciled["anomalies"]
    assert isinstance(anomalies, dict)
    assert {kind for kind, count in anomalies.items() if count} == set()
