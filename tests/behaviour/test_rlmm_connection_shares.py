"""Test that one identity whose calls stand still leaves connections for others."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text

from services.api.calls import Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.common.settings import whole_of
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.shares import ConnectionShares
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.settings import RlmmSettings
from tests.contract.rlmm.segments import finished, revision_of
from tests.harness.eventually import PATIENT, eventually

MOST = 2
SHARE_PERCENT = 75


@pytest.fixture
def shared(database_url: str) -> Iterator[SqlRemoteLogMetadataManager]:
    limits = replace(PATIENT, pool_size=whole_of(MOST, SHARE_PERCENT))
    engine = create_database_engine(database_url, limits)
    shares = ConnectionShares(MOST, timeout_s=0.2)
    yield SqlRemoteLogMetadataManager(engine, connection_shares=shares)
    engine.dispose()


def test_calls_of_one_identity_leave_connections_for_others(
    shared: SqlRemoteLogMetadataManager, engine: Engine, tp: TopicIdPartition
) -> None:
    finished(shared, tp, 0, 9)

    def lead(epoch: int) -> None:
        with serving(Call("greedy", "-")):
            shared.on_partition_leadership_changes([PartitionLeadership(tp, epoch)], [], 1)

    def read(identity: str) -> int:
        with serving(Call(identity, "-")):
            return revision_of(shared, tp)

    with ThreadPoolExecutor(MOST) as pool, engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM partitions FOR UPDATE"))
        calls = [pool.submit(lead, epoch) for epoch in range(1, MOST + 1)]
        eventually(lambda: waiting_for_locks(engine) == MOST)
        with pytest.raises(
            RetriableRemoteStorageError,
            match=rf"^too many database connections of greedy \(limit {MOST}\): no turn within",
        ):
            read("greedy")
        assert read("honest") == 2
        holder.rollback()
        for call in calls:
            call.result(timeout=60)
    assert read("greedy") > 2


def waiting_for_locks(engine: Engine) -> int:
    statement = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with engine.connect() as connection:
        count = connection.scalar(statement)
    assert isinstance(count, int)
    return count


def test_plaintext_has_no_shares_and_no_connections_beside_the_setting() -> None:
    settings = RlmmSettings(database_url="postgresql://u@h/d", plaintext=True)  # type: ignore[arg-type]  # as from the environment
    assert settings.connection_shares() is None
    assert settings.database_limits().pool_size == settings.database_pool_size
