"""Kill -9 an RLM anywhere in a removal: another one, of another broker, finishes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.api.calls import MutationContext
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_partitions
from services.common.failpoints import FAILPOINTS
from services.local.stack import ServiceProcess, rlm_settings
from services.workflows.deletion import UNKNOWN_BROKER
from tests.harness.eventually import eventually
from tests.harness.processes import run_until_killed
from tests.harness.variants import first_of
from tests.harness.world import World

REMOVAL = [
    *(name for name in FAILPOINTS if name.startswith("removal.")),
    "deletion.marked_some",
    "deletion.objects_deleted",
    "deletion.confirmed_some",
]


@contextmanager
def removing_rlm(world: World, directory: Path, name: str) -> Iterator[ServiceProcess]:
    """An RLM without logs, not started yet."""
    settings = rlm_settings(world.rsm.address, world.rlmm.address, [], task_interval_ms=200)
    settings["RLM_REMOTE_PARTITION_REMOVER_TASK_INTERVAL_MS"] = "200"
    settings["RLM_DELETION_GRACE_MS"] = "0"
    rlm = ServiceProcess("rlm", settings, directory / name)
    try:
        yield rlm
    finally:
        rlm.kill()


@pytest.fixture
def deleted(world: World) -> World:
    """The world's log is in the tier, and every partition of it is marked."""
    world.ship()
    with world.metadata() as rlmm:
        for name in world.local_segments():
            marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
            event = RemotePartitionDeleteMetadata(name, marked, 1, UNKNOWN_BROKER)
            rlmm.put_remote_partition_delete_metadata(event, MutationContext(reason="test"))
    assert world.rows()
    return world


def is_removed(world: World) -> bool:
    ours = world.local_segments()
    with world.metadata() as rlmm:
        known = {summary.topic_id_partition for summary in all_partitions(rlmm)}
    return known.isdisjoint(ours) and world.object_keys() == []


@pytest.mark.parametrize("failpoint", first_of(REMOVAL, 2))
def test_another_rlm_finishes_the_removal_of_a_killed_one(
    deleted: World, tmp_path: Path, failpoint: str
) -> None:
    with removing_rlm(deleted, tmp_path, "first") as first:
        run_until_killed(first, failpoint)
    assert not is_removed(deleted)
    with removing_rlm(deleted, tmp_path, "second") as second:
        second.start()
        eventually(lambda: is_removed(deleted), deadline_ms=60_000)


@pytest.mark.long
def test_two_rlms_remove_side_by_side(deleted: World, tmp_path: Path) -> None:
    with removing_rlm(deleted, tmp_path, "a") as a, removing_rlm(deleted, tmp_path, "b") as b:
        a.start()
        b.start()
        eventually(lambda: is_removed(deleted), deadline_ms=60_000)
