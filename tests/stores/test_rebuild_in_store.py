"""Rebuild a lost database from the manifests in the store that TEST_STORE names."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from services.api.remote_log_metadata_manager import all_segments
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.workflows.rebuild import Rebuild, RebuildPlan
from tests.harness.databases import Databases, OwnRlmm
from tests.harness.eventually import PATIENT
from tests.harness.tier import SIZE_BYTES, SmallTier, a_topic

pytestmark = pytest.mark.deep

SEGMENTS = 12


@pytest.fixture
def rsm(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        yield manager


@pytest.fixture
def empty_rlmm(databases: Databases) -> Iterator[SqlRemoteLogMetadataManager]:
    url = databases.take()
    engine = create_database_engine(url, PATIENT)
    yield SqlRemoteLogMetadataManager(engine)
    engine.dispose()
    assert databases.give_back(url) == []


def test_a_lost_database_is_rebuilt_with_every_segment_readable(
    rsm: ObjectRemoteStorageManager, rlmm: OwnRlmm, empty_rlmm: SqlRemoteLogMetadataManager
) -> None:
    lost = SmallTier(rsm, rlmm)
    partitions = a_topic("orders", 2)
    copied = {tp: lost.fill(tp, SEGMENTS) for tp in partitions}

    for imported in (2 * SEGMENTS, 0):
        plan = RebuildPlan(uuid4().hex, apply=True)
        done = Rebuild(empty_rlmm, rsm, rsm.objects, plan).run()
        assert sum(done.counts.values()) == imported, done.counts

    for tp in partitions:
        rebuilt = list(all_segments(empty_rlmm, tp))
        ids = [each.remote_log_segment_id for each in rebuilt]
        assert ids == [each.remote_log_segment_id for each in copied[tp]]
        for each in rebuilt:
            assert b"".join(rsm.fetch_log_segment(each, 0)) == bytes(SIZE_BYTES)
