"""Test that a real Kafka log is read again from the bucket after its database was lost."""

from dataclasses import replace
from pathlib import Path

from demos.stage import link_log_dir
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.workflows.rebuild import Rebuild, RebuildPlan
from tests.harness.databases import Databases
from tests.harness.ship_stack import (
    BUNDLED,
    lose_rolled_segments,
    read,
    running_stack,
)


def test_every_record_is_read_again_and_nothing_is_copied_twice(
    databases: Databases, database_url: str, tmp_path: Path
) -> None:
    log_dir = tmp_path / "log"
    link_log_dir(BUNDLED, log_dir)
    engine = create_database_engine(databases.take())
    with running_stack(database_url, tmp_path / "objects") as stack:
        stack.ship(log_dir)
        keys = stack.keys()
        rebuilt = replace(stack, rlmm=SqlRemoteLogMetadataManager(engine))
        plan = RebuildPlan("after the loss", apply=True)
        done = Rebuild(rebuilt.rlmm, stack.rsm, stack.rsm.objects, plan).run()
        names = find_partitions([log_dir]).partitions
        assert done.imported == sum(len(stack.segments(name)) for name in names)
        assert not done.needs_operator
        rebuilt.ship(log_dir)
        assert sorted(rebuilt.keys()) == sorted(keys)
        lose_rolled_segments(log_dir)
        before, after = stack.rlm(log_dir), rebuilt.rlm(log_dir)
        for name in names:
            assert rebuilt.ranges(name) == stack.ranges(name)
            assert read(after, 0, name) == read(before, 0, name)
    engine.dispose()
