"""Kill -9 an RLM anywhere in a deletion, run it again: what was due is gone, and nothing else."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any
from uuid import UUID

import pytest

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, FetchPartition, FetchRequest
from services.common.client_security import PLAINTEXT
from services.common.failpoints import FAILPOINTS
from services.local.process import ProcessError
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from tests.deep.test_kill_and_rerun import rlm_service
from tests.harness.eventually import eventually
from tests.harness.processes import kill_and_restart, run_until_killed, wait_until_dead
from tests.harness.variants import first_of
from tests.harness.world import FINISHED, World

DELETION = [name for name in FAILPOINTS if name.startswith("deletion.")]


def half_expires(world: World) -> dict[str, str]:
    """A retention.ms by which the older part of what is in the tier is due: with its bound in the
    longest pause of the records, so that minutes more or less do not matter."""
    times = sorted({row.max_timestamp_ms for row in world.rows()})
    pauses = [(later - earlier, (earlier, later)) for earlier, later in pairwise(times)]
    _, around = max(pauses)
    with world.metadata() as rlmm:
        name = next(iter(world.local_segments()))
        now_ms = rlmm.partition_state(name).value.read_at_ms
    return {"retention.ms": str(now_ms - int(mean(around)))}


@pytest.fixture
def due(world: World) -> dict[UUID, dict[str, Any]]:
    """The world's log is in the tier, and some of it is due; nobody has deleted it yet."""
    world.ship()
    world.set_retention(half_expires(world))
    announced = world.retention_due()
    assert 0 < len(announced) < len(world.rows())
    return announced


def log_starts(world: World) -> list[int]:
    with world.metadata() as rlmm:
        return [rlmm.partition_state(name).value.log_start_offset for name in ours(world)]


def ours(world: World) -> list[TopicIdPartition]:
    return list(world.local_segments())


def assert_only_due_is_gone(world: World, kept: set[UUID]) -> None:
    rows = world.rows()
    assert {row.remote_log_segment_id.id for row in rows} == kept
    assert {row.state for row in rows} == {FINISHED}
    assert len(world.object_keys()) == 3 * len(rows)
    world.assert_invariants()


@pytest.mark.parametrize("name", first_of(DELETION))
def test_rlm_killed_while_expiring(
    world: World, due: dict[UUID, dict[str, Any]], tmp_path: Path, name: str
) -> None:
    kept = {row.remote_log_segment_id.id for row in world.rows()} - set(due)
    with rlm_service(world, tmp_path) as rlm:
        run_until_killed(rlm, name)
        assert max(log_starts(world)) > 0
        kill_and_restart(rlm)
        eventually(lambda: len(world.rows()) == len(kept), deadline_ms=60_000)
        assert_only_due_is_gone(world, kept)


def test_the_log_start_is_raised_before_anything_is_marked(
    world: World, due: dict[UUID, dict[str, Any]], tmp_path: Path
) -> None:
    with rlm_service(world, tmp_path) as rlm:
        one_at_a_time = {"RLM_REMOTE_LOG_MANAGER_EXPIRATION_THREAD_POOL_SIZE": "1"}
        with suppress(ProcessError):
            rlm.start({**one_at_a_time, "SEDIMENT_FAILPOINT": "deletion.log_start_raised"})
        wait_until_dead(rlm)
    assert len([start for start in log_starts(world) if start]) == 1
    assert {row.state for row in world.rows()} == {FINISHED}


def test_expired_offsets_are_out_of_range_though_still_on_disk(
    world: World, due: dict[UUID, dict[str, Any]], tmp_path: Path
) -> None:
    left = len(world.rows()) - len(due)
    with rlm_service(world, tmp_path) as rlm:
        rlm.start()
        eventually(lambda: len(world.rows()) == left, deadline_ms=60_000)
        with open_channel(rlm.address, PLAINTEXT) as channel:
            manager = RemoteLogManagerClient(channel, rlm.address)
            for name, start in zip(ours(world), log_starts(world), strict=True):
                for offset, expected in (
                    (start - 1, FetchError.OFFSET_OUT_OF_RANGE),
                    (start, FetchError.NONE),
                ):
                    request = FetchRequest((FetchPartition(name, offset, 1 << 20),), 1 << 20)
                    part = next(iter(manager.fetch(request)))
                    assert (part.error, part.log_start_offset) == (expected, start)
