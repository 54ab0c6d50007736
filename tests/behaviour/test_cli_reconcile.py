"""Test `sediment reconcile` over real services."""

import json
from typing import Any

import pytest

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.layout import segment_keys
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm
from tests.harness.tier import SmallTier, a_topic, segment

rlmm, rsm, store = served_fixtures.rlmm, served_fixtures.rsm, served_fixtures.store


def reconcile(rlmm: RlmmProcess, rsm: ServedRsm, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("reconcile", "--rsm", rsm.address, *options, "-o", "json")
    return done.returncode, json.loads(done.stdout)


def test_orphans_are_reported_then_deleted_and_a_sound_tier_stays(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 2)
    sound = sorted(store.list_keys(""))
    store.put(segment_keys("", segment(tp, 9)).log("a" * 16), b"left behind")
    for deleted in (0, 1):
        code, reported = reconcile(rlmm, rsm, "--delete", "--grace-ms", "0")
        assert (code, reported["deleted_objects"]) == (0, deleted)
        assert reported["anomalies"]["ORPHAN_OBJECTS"] == 1
        assert (reported["segments"], reported["objects"], reported["failures"]) == (3, 7, [])
    assert sorted(store.list_keys("")) == sound
    (seen,) = rlmm.answers("anomalies")
    assert (seen["kind"], seen["times_seen"], seen["run_id"]) == (
        "ORPHAN_OBJECTS",
        2,
        reported["run_id"],
    )


@pytest.mark.deep
def test_anomaly_that_needs_an_operator_has_its_own_exit_code(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    store.delete([key for key in store.list_keys("") if key.endswith(".log")])
    code, reported = reconcile(rlmm, rsm)
    assert (code, reported["anomalies"]["MISSING_OBJECTS"]) == (1, 1)
    done = rlmm.sediment("reconcile", "--rsm", rsm.address)
    assert (done.returncode, "MISSING_OBJECTS" in done.stdout) == (1, True)


def test_a_manifest_that_is_none_is_for_an_operator_too(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    store.put(segment_keys("", segment(tp, 9)).manifest, b"no manifest")
    code, reported = reconcile(rlmm, rsm, "--grace-ms", "0")
    assert (code, reported["anomalies"]["CORRUPT_OBJECT"]) == (1, 1)


def test_a_location_that_is_not_registered_is_named(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    line = rlmm.refusal("reconcile", "--rsm", rsm.address, "--location", "7")
    assert "location 7 is not registered" in line


def test_a_service_that_is_away_is_a_failure(rlmm: RlmmProcess) -> None:
    done = rlmm.sediment("reconcile", "--rsm", "127.0.0.1:9")
    assert done.returncode == 3
    assert "127.0.0.1:9" in done.stderr
