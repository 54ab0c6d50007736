"""Provide a log in a directory that RLM owns, and RLMs that enforce local retention step by
step.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.rlm.fetch.segment_reader import RemoteReadLimits
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments
from services.rlm.manager import BrokerRemoteLogManager
from services.rlm.retention.local_files import LogDirLocks, delete_segment_files
from services.rlm.roles.partition_roles import PartitionSource
from tests.harness.retained_log import AT_ONCE, DEADLINE_S
from tests.harness.ship_stack import Stack
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

ALL = [0, 10, 20, 30, 40, 50, 60]
# No reader abandons another's fetch: these tests check the content of reads, not their speed.
AT_ONCE_LOCALLY = replace(
    AT_ONCE, local_retention_interval_s=0.0, read=RemoteReadLimits(wait_s=60.0)
)
NOTHING_STAYS = {"local.retention.ms": "1"}

MakesRlm = Callable[..., BrokerRemoteLogManager]


def owner(stack: Stack, log_dir: Path, locks: LogDirLocks) -> MakesRlm:
    """Return a function that makes RLMs which own the log directory."""

    def make(
        rsm: Any = None, rlmm: Any = None, source: PartitionSource = PartitionSource.STATIC
    ) -> BrokerRemoteLogManager:
        return BrokerRemoteLogManager(
            [log_dir],
            rsm or stack.rsm,
            rlmm or stack.rlmm,
            AT_ONCE_LOCALLY,
            source=source,
            owned=locks,
        )

    return make


def retain(rlm: BrokerRemoteLogManager) -> None:
    """Run a pass of local retention."""
    rlm.local_retention_scheduler.tick()
    assert rlm.local_retention_scheduler.wait_idle(DEADLINE_S)


def put(stack: Stack, *settings: dict[str, str]) -> None:
    entries = {name: value for some in settings for name, value in some.items()}
    stack.rlmm.put_topic_config(NAME.topic_id, entries)


def here(files: PartitionFiles) -> list[int]:
    return [segment.base_offset for segment in list_segments(files.path)]


def delete_locally(segment: LocalSegment) -> None:
    folder_fd = os.open(segment.directory, os.O_RDONLY)
    try:
        delete_segment_files(segment, folder_fd)
    finally:
        os.close(folder_fd)
