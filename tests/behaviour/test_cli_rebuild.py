"""Test `sediment db rebuild` and `sediment db confirm-rebuild` over real services."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api.segments import RemoteLogSegmentState
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.rlmm_process import RlmmProcess, serving_rlmm
from tests.harness.served_rsm import ServedRsm, serving
from tests.harness.tier import SIZE_BYTES, SmallTier, a_topic, segment

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@pytest.fixture
def rlmm(database_url: str) -> Iterator[RlmmProcess]:
    with serving_rlmm(database_url) as made:
        yield made


@pytest.fixture
def rsm(tmp_path: Path) -> Iterator[ServedRsm]:
    (tmp_path / "objects").mkdir()
    with serving(RsmSettings(backend="filesystem", directory=tmp_path / "objects")) as made:
        yield made


def rebuild(rlmm: RlmmProcess, rsm: ServedRsm, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("db", "rebuild", "--rsm", rsm.address, *options, "-o", "json")
    return done.returncode, json.loads(done.stdout)


def frozen_since_ms(rlmm: RlmmProcess, database_url: str) -> int | None:
    [shown] = rlmm.answers("db", "current", "--database-url", database_url)
    found: int | None = shown["deletions_frozen_since_ms"]
    return found


def test_a_dry_run_reports_and_apply_imports_until_the_rebuild_is_confirmed(
    rlmm: RlmmProcess, rsm: ServedRsm, database_url: str
) -> None:
    (tp,) = a_topic("orders")
    lost = segment(tp, 0)
    rsm.client.copy_log_segment_data(lost, Files(bytes(SIZE_BYTES)).data())
    code, dry = rebuild(rlmm, rsm)
    assert (code, dry["apply"], dry["imported"], dry["freeze"]) == (0, False, 0, None)
    assert [(each["kind"], each["topic"], each["end_offset"]) for each in dry["differences"]] == [
        ("ONLY_IN_BUCKET", "orders", lost.end_offset)
    ]
    assert frozen_since_ms(rlmm, database_url) is None
    code, applied = rebuild(rlmm, rsm, "--apply")
    assert (code, applied["imported"], applied["freeze"]["reason"]) == (0, 1, "rebuild")
    assert [each.state for each in SmallTier(rsm.client, rlmm.client).rows(tp)] == [FINISHED]
    assert frozen_since_ms(rlmm, database_url) == applied["freeze"]["since_ms"]
    [ended] = rlmm.answers("db", "confirm-rebuild", "--reason", "checked")
    assert ended == {"ended": applied["freeze"]}
    again = rlmm.sediment("db", "confirm-rebuild", "--reason", "checked")
    assert (again.returncode, "not frozen" in again.stderr) == (0, True)


def test_what_is_only_in_the_metadata_has_its_own_exit_code(
    rlmm: RlmmProcess, rsm: ServedRsm
) -> None:
    (tp,) = a_topic("orders")
    (only,) = SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    rsm.client.delete_log_segment_data(only)
    done = rlmm.sediment("db", "rebuild", "--rsm", rsm.address, "--apply")
    assert done.returncode == 1
    assert "ONLY_IN_METADATA" in done.stdout
    assert "confirm-rebuild" in done.stderr


def test_a_confirmation_needs_a_reason(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("db", "confirm-rebuild")
    assert (done.returncode, "--reason" in done.stderr) == (2, True)
