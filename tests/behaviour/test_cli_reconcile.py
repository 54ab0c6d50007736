"""Test `sediment reconcile` over real services."""

import json
from typing import Any

import pytest

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.layout import segment_keys
from tests.harness import served_fixtures
from tests.harness.holds import hold
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm
from tests.harness.stores import keys_in
from tests.harness.tier import SmallTier, a_topic, segment

rlmm, rsm, store = served_fixtures.rlmm_with_rsm, served_fixtures.rsm, served_fixtures.store


def reconcile(rlmm: RlmmProcess, *options: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("reconcile", *options, "-o", "json")
    return done.returncode, json.loads(done.stdout)


def test_orphans_are_reported_then_deleted_and_a_sound_tier_stays(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 2)
    sound = sorted(keys_in(store, ""))
    store.put(segment_keys("", segment(tp, 9)).log("a" * 16), b"left behind")
    for deleted in (0, 1):
        code, reported = reconcile(rlmm, "--delete", "--grace", "0")
        assert (code, reported["deleted_objects"]) == (0, deleted)
        assert reported["anomalies"]["ORPHAN_OBJECTS"] == 1
        assert (reported["segments"], reported["objects"], reported["failures"]) == (3, 7, [])
    assert sorted(keys_in(store, "")) == sound
    (seen,) = rlmm.answers("anomalies")
    assert (seen["kind"], seen["times_seen"], seen["run_id"]) == (
        "ORPHAN_OBJECTS",
        2,
        reported["run_id"],
    )


def test_what_holds_keep_is_counted(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    store.put(segment_keys("", segment(tp, 9)).log("a" * 16), b"left behind")
    hold(rlmm.client, tp)
    options = ("--delete", "--grace", "0")
    assert reconcile(rlmm, *options)[1]["held"] == 0
    code, reported = reconcile(rlmm, *options)
    assert (code, reported["deleted_objects"], reported["held"]) == (0, 0, 1)
    shown = rlmm.sediment("reconcile", *options).stdout
    [line] = [each for each in shown.splitlines() if "kept by holds" in each]
    assert line.split()[-1] == "1"


@pytest.mark.deep
def test_anomaly_that_needs_an_operator_has_its_own_exit_code(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    SmallTier(rsm.client, rlmm.client).fill(tp, 1)
    store.delete([key for key in keys_in(store, "") if key.endswith(".log")])
    code, reported = reconcile(rlmm)
    assert (code, reported["anomalies"]["MISSING_OBJECTS"]) == (1, 1)
    done = rlmm.sediment("reconcile")
    assert (done.returncode, "MISSING_OBJECTS" in done.stdout) == (1, True)


def test_a_manifest_that_is_none_is_for_an_operator_too(
    rlmm: RlmmProcess, store: FilesystemStorage
) -> None:
    (tp,) = a_topic("orders")
    store.put(segment_keys("", segment(tp, 9)).manifest, b"no manifest")
    code, reported = reconcile(rlmm, "--grace", "0")
    assert (code, reported["anomalies"]["CORRUPT_OBJECT"]) == (1, 1)
