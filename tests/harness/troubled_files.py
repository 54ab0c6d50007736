"""Provide an RLM over two partitions, and damage the files of the first."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.api.partitions import EventQuery
from services.api.remote_log_manager import ProblemKind, all_descriptions
from services.api.remote_log_metadata_manager import all_events
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.collectors import PARTITIONS_HELD_BACK, TopicCollector
from services.rlm.manager import BrokerRemoteLogManager
from tests.harness.invariants import assert_invariants
from tests.harness.retained_log import AT_ONCE, take_turns
from tests.harness.ship_stack import Stack
from tests.harness.troubled_managers import FailingRsm
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, three_segments

WELL = replace(NAME, partition=1)
ALL = [(0, 9), (10, 19)]
Hurt = Callable[[PartitionFiles], object]


class Trouble:
    """Two partitions with offsets 0 to 9 and 10 to 19 rolled; a test steps RLM by hand."""

    def __init__(self, stack: Stack, log_dir: Path) -> None:
        self.stack = stack
        self.files = three_segments(log_dir)
        three_segments(log_dir, WELL)
        self._rsm = FailingRsm(stack.rsm)
        self.rlm = BrokerRemoteLogManager([log_dir], self._rsm, stack.rlmm, AT_ONCE)

    def happens(self, hurt: Hurt, base: int = 0) -> None:
        """Run `hurt` once, when the segment from `base` on was inspected and is about to be
        sent.
        """
        happened: list[bool] = []

        def before_copy(metadata: RemoteLogSegmentMetadata) -> None:
            place = metadata.topic_id_partition, metadata.start_offset
            if place == (NAME, base) and not happened:
                happened.append(True)
                hurt(self.files)

        self._rsm.before_copy = before_copy
        take_turns(self.rlm)
        assert happened

    def problems(self) -> list[tuple[ProblemKind, str]]:
        described = all_descriptions(self.rlm)
        ours = [found for found in described if found.topic_id_partition == NAME]
        return [(p.kind, p.path) for found in ours for p in found.problems]

    def assert_nothing_is_left_over(self) -> None:
        """Assert three objects for each finished segment, and no other row or object.

        The other partition must be in the tier.
        """
        assert_invariants(self.stack.rlmm, [NAME, WELL])
        finished = len(self.stack.ranges(NAME)) + len(self.stack.ranges(WELL))
        assert len(self.stack.keys()) == 3 * finished
        assert self.stack.ranges(WELL) == ALL

    def gaps(self) -> list[str]:
        return [e.kind for e in all_events(self.stack.rlmm, EventQuery(NAME)) if e.kind == "GAP"]

    def held_back(self) -> float:
        """Read the gauge as it is scraped."""
        registry = CollectorRegistry()
        registry.register(TopicCollector(self.rlm.led_partitions))
        value = registry.get_sample_value(PARTITIONS_HELD_BACK.name, {"topic": NAME.topic})
        assert value is not None
        return value
