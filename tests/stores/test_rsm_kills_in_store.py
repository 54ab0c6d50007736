"""Kill -9 RSM at every named place of a copy over the store that TEST_STORE names."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.errors import RetriableRemoteStorageError
from services.common.client_security import PLAINTEXT
from services.local.emulators import StoreEmulator
from services.local.stack import ServiceProcess
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient, SegmentObjectsClient
from services.rsm.factory import build_backend
from services.rsm.marker import MARKER_NAME
from services.rsm.settings import RsmSettings
from services.workflows.reconcile import Reconciliation, ReconciliationPlan
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.contract.rsm_over_s3 import everything_in
from tests.deep.test_rsm_kills import COPYING
from tests.harness.databases import OwnRlmm
from tests.harness.processes import kill_and_restart, start_with_failpoint, wait_until_dead
from tests.harness.tier import now_ms
from tests.stores.conftest import BUCKET

pytestmark = [pytest.mark.deep, pytest.mark.timeout(300)]

LOG = some_bytes(11 * MIB)


@pytest.fixture
def settings_of_process(emulator: StoreEmulator, tmp_path: Path) -> dict[str, str]:
    named = emulator.rsm_settings(BUCKET, f"{uuid4().hex}/", tmp_path / "locations.toml")
    return {**named, "RSM_PART_SIZE_BYTES": str(5 * MIB)}


@pytest.fixture
def rsm(settings_of_process: dict[str, str], tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess("rsm", settings_of_process, tmp_path / "rsm")
    yield service
    service.kill()


@pytest.mark.parametrize("place", COPYING)
def test_a_killed_copy_is_repeated_and_what_it_left_is_reconciled(
    rsm: ServiceProcess, settings_of_process: dict[str, str], rlmm: OwnRlmm, place: str
) -> None:
    values = {name.removeprefix("RSM_").lower(): v for name, v in settings_of_process.items()}
    settings = RsmSettings.model_validate(values)
    stored_keys = everything_in(build_backend(settings), settings.prefix)

    def everything() -> list[str]:
        return [key for key in stored_keys() if not key.endswith(MARKER_NAME)]

    unnamed, named = a_segment(), a_segment()
    start_with_failpoint(rsm, place)
    with (
        open_channel(rsm.address, PLAINTEXT) as channel,
        pytest.raises(RetriableRemoteStorageError),
    ):
        RemoteStorageManagerClient(channel, rsm.address).copy_log_segment_data(
            unnamed, Files(LOG).data()
        )
    wait_until_dead(rsm)
    kill_and_restart(rsm)

    with open_channel(rsm.address, PLAINTEXT) as channel:
        client = RemoteStorageManagerClient(channel, rsm.address)
        again = copied(client, Files(LOG), named)
        assert fetched(client, again) == LOG
        objects = SegmentObjectsClient(channel, rsm.address)
        for _ in range(2):
            plan = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, 0, delete=True)
            assert not Reconciliation(rlmm, client, objects, plan).run().deletions.failures
        left = everything()
        if place == "rsm.manifest_written":
            # Whole: its row may have been lost with a database that was restored.
            client.delete_log_segment_data(unnamed)
        assert len(everything()) == 3, left
        client.delete_log_segment_data(again)
    assert everything() == []
