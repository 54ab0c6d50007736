"""A database that was set back, and has reached the same revisions since by other changes."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.watches import WatchedPartition
from services.rlm.revisions import Revisions
from services.rlm.tier_state import TierState
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.rlmm.segments import finished, move, revision_of
from tests.harness.eventually import PATIENT, eventually
from tests.harness.local_servers import DatabaseServer
from tests.harness.wrapper import Wrapper

DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
TP = TopicIdPartition(uuid4(), "orders", 0)


@pytest.fixture
def copied(postgres: DatabaseServer) -> Iterator[Callable[[str], str]]:
    """Provide a function that copies a database without sessions; the copy is its backup."""
    made = []

    def copy(url: str) -> str:
        made.append(f"test_{uuid4().hex}")
        return postgres.create_database(made[-1], template=url.rpartition("/")[2])

    yield copy
    for name in made:
        postgres.drop_database(name)


@contextmanager
def on(url: str) -> Iterator[SqlRemoteLogMetadataManager]:
    engine = create_database_engine(url, PATIENT)
    try:
        yield SqlRemoteLogMetadataManager(engine)
    finally:
        engine.dispose()


def first_history(rlmm: SqlRemoteLogMetadataManager) -> RemoteLogSegmentMetadata:
    """Make what the backup has: one segment."""
    return finished(rlmm, TP, 0, 9)


def other_history(rlmm: SqlRemoteLogMetadataManager, only: RemoteLogSegmentMetadata) -> None:
    """Change a restored database otherwise, up to a later revision."""
    move(rlmm, only, DELETING)
    finished(rlmm, TP, 10, 19)
    finished(rlmm, TP, 20, 29)


@pytest.fixture
def backup(database_url: str, copied: Callable[[str], str]) -> tuple[str, RemoteLogSegmentMetadata]:
    with on(database_url) as rlmm:
        only = first_history(rlmm)
    return copied(database_url), only


def test_a_watch_that_resumes_is_informed(
    database_url: str, backup: tuple[str, RemoteLogSegmentMetadata]
) -> None:
    restored, only = backup
    with on(database_url) as rlmm:
        finished(rlmm, TP, 10, 19)
        with closing(rlmm.watch_partitions([WatchedPartition(TP)])) as updates:
            (known,) = next(updates).partitions
    assert known.revision == 4
    with on(restored) as rlmm:
        other_history(rlmm, only)
        assert revision_of(rlmm, TP) > known.revision
        again = WatchedPartition(TP, known.revision, known.changed_at_us)
        with closing(rlmm.watch_partitions([again])) as updates:
            (resumed,) = next(updates).partitions
    assert resumed.everything


def test_rlm_lists_again_though_the_revision_is_the_same(
    database_url: str, backup: tuple[str, RemoteLogSegmentMetadata], tmp_path: Path
) -> None:
    restored, only = backup
    settings = RsmSettings(backend="filesystem", directory=tmp_path)
    with on(database_url) as before, on(restored) as after, closing(build_manager(settings)) as rsm:
        finished(before, TP, 10, 19)
        address: Any = Wrapper(before)
        revisions = Revisions(address, 60.0)
        state = TierState(rsm, address, TP, revisions)
        revisions.start()
        revisions.follow([TP])
        seen = state.refresh()
        eventually(lambda: state.is_as_polled and revisions.of(TP) == seen.revision)

        move(after, only, DELETING, DELETED)
        assert revision_of(after, TP) == seen.revision
        address.real = after
        before.end_watches()

        def is_informed() -> bool:
            revisions.follow([TP])
            return not state.is_as_polled

        eventually(lambda: not revisions.is_watching)
        eventually(is_informed)
        again = state.refresh()
        assert (seen.revision, seen.segments) == (again.revision, 2)
        assert again.segments == 0
        revisions.stop()
        after.end_watches()
