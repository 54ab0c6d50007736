"""Read through RSM what Kafka's own LocalTieredStorage has written."""

from pathlib import Path

import pytest

from services.api.errors import RemoteResourceNotFoundError
from services.api.remote_storage_manager import IndexType
from tests.contract.remote_storage_manager_contract import (
    Files,
    fetched,
    index,
    some_bytes,
    without,
)
from tests.harness.foreign_tiers import imported, local_tier
from tests.harness.served import serving
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
