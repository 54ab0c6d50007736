"""RSM killed at each step of a copy that nobody takes up again: reconciliation removes what is
left, and neither what is whole nor what metadata names."""

import json
from typing import Any

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.common.failpoints import FAILPOINTS
from services.rsm.factory import build_backend
from services.rsm.layout import segment_keys
from tests.contract.remote_storage_manager_contract import Files, a_segment, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.variants import first_of
from tests.harness.world import SMALLEST_PART_BYTES, World

COPYING = [
    name for name in FAILPOINTS if name.startswith("rsm.") and not name.startswith("rsm.delete")
]


@pytest.mark.parametrize("name", first_of(reversed(COPYING)))
def test_rsm_killed_while_copying_a_segment_without_metadata(world: World, name: str) -> None:
    world.ship()
    shipped = set(world.object_keys())
    unnamed, log = a_segment(), some_bytes(2 * SMALLEST_PART_BYTES)
    world.rsm.kill()
    start_with_failpoint(world.rsm, name)
    with world.storage() as rsm, pytest.raises(RetriableRemoteStorageError):
        rsm.copy_log_segment_data(unnamed, Files(log).data())
    wait_until_dead(world.rsm)
    kill_and_restart(world.rsm)
    assert left_of(world, segment_keys("", unnamed).prefix)
    first, second = reconcile(world), reconcile(world)
    assert first["failures"] == second["failures"] == []
    if name == "rsm.manifest_written":
        # Whole: its row may have been lost with a database that was restored.
        assert len(left_of(world, segment_keys("", unnamed).prefix)) == 3
        with world.storage() as rsm:
            rsm.delete_log_segment_data(unnamed)
    assert left_of(world, segment_keys("", unnamed).prefix) == []
    assert set(world.object_keys()) == shipped
    world.assert_all_shipped()


def reconcile(world: World) -> dict[str, Any]:
    done = world.sediment(
        "reconcile", "--rsm", world.rsm.address, "--delete", "--grace-ms", "0", "-o", "json"
    )
    assert done.stdout, done.stderr
    reported: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if reported["anomalies"]["UNREFERENCED_COMPLETE"] else 0)
    return reported


def left_of(world: World, prefix: str) -> list[str]:
    """Objects and uploads, asked of the store itself."""
    store = build_backend(settings_for(world.s3, {"bucket": world.bucket}))
    return [*store.list_keys(prefix), *(upload.key for upload in store.list_uploads(prefix))]
