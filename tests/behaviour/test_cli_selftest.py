"""Test `sediment selftest` over real services."""

import json
from collections.abc import Iterator
from typing import Any

from services.api.partitions import RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import all_partitions
from services.api.segments import RemoteLogSegmentMetadata
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.backends.filesystem import FilesystemStorage
from services.workflows.selftest import TOPIC, run_selftest
from tests.harness import served_fixtures
from tests.harness.processes import RlmmProcess
from tests.harness.served import ServedRsm
from tests.harness.stores import keys_in

rlmm, rsm, store = served_fixtures.rlmm, served_fixtures.rsm, served_fixtures.store

STEPS = ["register", "copy", "commit", "look up", "fetch", "delete"]


class _ChangedReads(RemoteStorageManagerClient):
    """A client that receives each chunk with its first byte changed."""

    def fetch_log_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> Iterator[bytes]:
        for chunk in super().fetch_log_segment(metadata, start_position, end_position):
            yield bytes([chunk[0] ^ 1]) + chunk[1:]


def selftest(rlmm: RlmmProcess, rsm_address: str) -> tuple[int, dict[str, Any]]:
    done = rlmm.sediment("selftest", "--rsm", rsm_address, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_segment_is_copied_read_and_deleted(
    rlmm: RlmmProcess, rsm: ServedRsm, store: FilesystemStorage
) -> None:
    before = sorted(keys_in(store, ""))
    code, report = selftest(rlmm, rsm.address)
    assert (code, report["passed"]) == (0, True), report
    assert [(step["name"], step["error"]) for step in report["steps"]] == [
        (name, None) for name in STEPS
    ]
    assert sorted(keys_in(store, "")) == before
    assert list(all_partitions(rlmm.client)) == []


def test_a_step_that_fails_is_named_and_the_partition_is_left_to_a_sweep(
    rlmm: RlmmProcess,
) -> None:
    code, report = selftest(rlmm, "127.0.0.1:9")
    assert (code, report["passed"]) == (1, False)
    failed = {step["name"]: step["error"] for step in report["steps"] if step["error"] is not None}
    assert failed.keys() == {"copy", "delete"}
    assert "127.0.0.1:9" in failed["copy"]
    (left,) = all_partitions(rlmm.client)
    assert left.topic_id_partition.topic == TOPIC
    assert left.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_STARTED


def test_other_bytes_than_were_copied_are_found(rlmm: RlmmProcess, rsm: ServedRsm) -> None:
    with open_channel(rsm.address, PLAINTEXT) as channel:
        steps = run_selftest(rlmm.client, _ChangedReads(channel, rsm.address))
    assert {step.name: step.error for step in steps if step.error is not None} == {
        "fetch": "RSM returned other bytes than it got"
    }
