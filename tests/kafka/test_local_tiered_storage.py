"""Read through RSM what Kafka's own LocalTieredStorage has written, and let it read our copy."""

from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.rsm.leaving import LocalTieredStorageDirectory
from services.workflows.copy_segments import CopyPlan, SegmentCopy
from services.workflows.scrub import Pace
from tests.behaviour.test_copy_segments import whole
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    fetched,
    index,
    some_bytes,
    without,
)
from tests.harness.databases import OwnRlmm
from tests.harness.foreign_tiers import imported, local_tier
from tests.harness.served import serving
from tests.harness.tier import FileTier
from tests.kafka.local_tiered_storage import copied_by_kafka, digests_of, read_by_kafka

pytestmark = pytest.mark.kafka

WHOLE = Files(some_bytes(2_500_000))
WITHOUT_TRANSACTIONS = Files(some_bytes(70_001, 1), without(IndexType.TRANSACTION))


def test_every_file_is_read_over_grpc(tmp_path: Path) -> None:
    tier = local_tier(tmp_path)
    segments = {imported(WHOLE): WHOLE, imported(WITHOUT_TRANSACTIONS, None): WITHOUT_TRANSACTIONS}
    copied_by_kafka(tmp_path / "theirs", tmp_path / "files", segments)
    assert read_by_kafka(tmp_path / "theirs", list(segments)) == [
        digests_of(files) for files in segments.values()
    ]
    names = {key.rsplit(".", 1)[0] for key in tier.left()}
    assert names == {tier.stem(row) for row in segments}
    with serving(tier.settings) as served:
        for row, files in segments.items():
            assert fetched(served.client, row) == files.log
            assert fetched(served.client, row, 10, 69_999) == files.log[10:70_000]
            for kind, data in files.indexes.items():
                assert index(served.client, row, kind) == data
        with pytest.raises(RemoteResourceNotFoundError, match=r"no .*\.txnindex"):
            index(served.client, row, IndexType.TRANSACTION)


def test_kafka_reads_the_copy_of_a_tier_that_leaves(rlmm: OwnRlmm, tmp_path: Path) -> None:
    with closing(build_manager(local_tier(tmp_path).settings)) as rsm:
        leave(FileTier(rsm, rlmm, FilesystemStorage(tmp_path / "own")), tmp_path)


def leave(tier: FileTier, tmp_path: Path) -> None:
    contents = [whole(1), whole(2, transactions=False)]
    rows = [tier.copy(a_segment(len(each.log), 4711, tier.tp.topic_id), each) for each in contents]
    leaving = tmp_path / "leaving"
    leaving.mkdir()
    target, pace = LocalTieredStorageDirectory(leaving), Pace(lambda _: None, lambda _: None)
    done = SegmentCopy(tier.rlmm, tier.rsm, target, CopyPlan("r"), pace).run()
    assert (done.copied, done.failed) == (2, 0)
    assert read_by_kafka(leaving, rows) == [digests_of(files) for files in contents]
