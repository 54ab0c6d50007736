"""Test a topic of another deployment, brought in under another name from a read-only location."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import InvalidRequestError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_metadata_manager import all_partitions
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from services.workflows.deletion import Deleter
from services.workflows.other_topic import other_topic
from services.workflows.rebuild import HOLD, Rebuild, RebuildPlan
from services.workflows.rebuild_report import Rebuilt
from services.workflows.reconcile import Reconciliation, ReconciliationPlan
from services.workflows.removal import remove_partition
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, index
from tests.contract.remote_storage_manager_contract import a_segment as segment_of
from tests.harness.databases import OwnRlmm
from tests.harness.processes import serving_rlmm
from tests.harness.served import serving
from tests.harness.tier import FileTier, now_ms

FILES = Files(b"records")
PLACE = '[[location]]\nid = 9\nbackend = "filesystem"\nprefix = ""\ndirectory = '


def settings_of(directory: Path, name: str, **others: Any) -> RsmSettings:
    (directory / name).mkdir(exist_ok=True)
    return RsmSettings(
        backend="filesystem", directory=directory / name, deployment_id=name, **others
    )


@dataclass(kw_only=True)
class OldAndNew(FileTier):
    """A deployment that has another one's place registered, and a segment of that one."""

    theirs: RemoteLogSegmentMetadata

    def brought(self, topic: str = "", name: str = "old-orders", *, apply: bool = True) -> Rebuilt:
        objects = other_topic(self.rsm.objects, 9, topic, name)
        plan = RebuildPlan(uuid4().hex, apply, (9,), only_listed=True)
        return Rebuild(self.rlmm, self.rsm, objects, plan).run()

    @property
    def named(self) -> TopicIdPartition:
        tp = self.theirs.topic_id_partition
        return TopicIdPartition(tp.topic_id, "old-orders", tp.partition)


def registry(directory: Path, read_only: str) -> Path:
    file = directory / "locations.toml"
    file.write_text(f'{PLACE}"{directory / "theirs"}"\nread_only = {read_only}\n')
    return file


@pytest.fixture
def tier(rlmm: OwnRlmm, tmp_path: Path) -> Iterator[OldAndNew]:
    with closing(build_manager(settings_of(tmp_path, "theirs"))) as rsm:
        rsm.check()
        row = copied(rsm, FILES, segment_of(len(FILES.log)))
    file = registry(tmp_path, "true")
    with closing(build_manager(settings_of(tmp_path, "ours", locations_file=file))) as rsm:
        rsm.check()
        store = FilesystemStorage(tmp_path / "ours")
        yield OldAndNew(rsm=rsm, rlmm=rlmm, store=store, theirs=row)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_records_are_read_under_the_other_name(tier: OldAndNew) -> None:
    assert tier.brought(apply=False).imported == 0
    assert list(all_partitions(tier.rlmm)) == []
    assert tier.brought().imported == 1
    [row] = tier.rows(tier.named)
    assert row.topic_id_partition.topic == "old-orders"
    assert fetched(tier.rsm, row) == FILES.log
    assert index(tier.rsm, row, IndexType.OFFSET) == FILES.indexes[IndexType.OFFSET]
    again = tier.brought()
    assert (again.imported, again.same, dict(again.counts)) == (0, 1, {})


def test_removal_touches_rows_alone(tier: OldAndNew, tmp_path: Path) -> None:
    before = files_in(tmp_path / "theirs")
    tier.brought()
    tier.rlmm.end_hold(HOLD)
    plan = ReconciliationPlan(uuid4().hex, now_ms() + 1_000, 0, True)
    done = Reconciliation(tier.rlmm, tier.rsm, tier.rsm.objects, plan).run()
    assert done.anomalies == {}
    tier.mark_deleted(tier.named)
    assert remove_partition(tier.rlmm, tier.rsm, tier.named, Deleter(1), now_ms()).left == ""
    assert files_in(tmp_path / "theirs") == before


def test_topic_is_chosen_by_name_or_id(tier: OldAndNew, tmp_path: Path) -> None:
    with closing(build_manager(settings_of(tmp_path, "theirs"))) as rsm:
        rsm.check()
        copied(rsm, FILES, segment_of(len(FILES.log)))
    topic_id = uuid_to_text(tier.theirs.topic_id_partition.topic_id)
    for topic in ("", "orders.eu-1"):
        with pytest.raises(InvalidRequestError, match=rf"several such topics.*{topic_id}:orders"):
            tier.brought(topic)
    with pytest.raises(InvalidRequestError, match="has no topic payments; give one"):
        tier.brought("payments")
    done = tier.brought(topic_id)
    assert (done.imported, done.segments) == (1, 1)


def test_location_that_is_not_read_only_is_refused(
    rlmm: OwnRlmm, tier: OldAndNew, tmp_path: Path
) -> None:
    before = files_in(tmp_path / "theirs")
    marker = tmp_path / "theirs" / ".sediment"
    marker.unlink()  # Else RSM refuses the place of another deployment.
    file = registry(tmp_path, "false")
    with closing(build_manager(settings_of(tmp_path, "ours", locations_file=file))) as rsm:
        rsm.check()
        writable = OldAndNew(rsm=rsm, rlmm=rlmm, store=tier.store, theirs=tier.theirs)
        with pytest.raises(InvalidRequestError, match="9 is not read-only"):
            writable.brought()
    assert files_in(tmp_path / "theirs") == [name for name in before if name != ".sediment"]


def test_place_of_another_deployment_is_refused_unless_it_is_read_only(
    tier: OldAndNew, tmp_path: Path
) -> None:
    file = registry(tmp_path, "false")
    with closing(build_manager(settings_of(tmp_path, "ours", locations_file=file))) as rsm:
        with pytest.raises(Exception, match="says that it is location 1 of deployment 'theirs'"):
            rsm.check()
        with pytest.raises(RetriableRemoteStorageError):
            fetched(rsm, tier.theirs)


def test_command_brings_a_topic_in(tier: OldAndNew, database_url: str, tmp_path: Path) -> None:
    file = registry(tmp_path, "true")
    (tmp_path / "served").mkdir()
    settings = RsmSettings(backend="filesystem", directory=tmp_path / "served", locations_file=file)
    with serving(settings) as served, serving_rlmm(database_url) as process:
        rlmm = process.beside(SEDIMENT_RSM=served.address)
        assert "--topic goes with --as" in rlmm.refusal("db", "rebuild", "--topic", "x")
        assert "--as takes one" in rlmm.refusal(
            *("db", "rebuild", "--as", "x", "--location", 9, "--location", 1)
        )
        [report] = rlmm.answers(
            *("db", "rebuild", "--location", 9, "--as", "old-orders", "--topic", "orders.eu-1"),
            "--apply",
        )
        assert report["imported"] == 1
        [row] = rlmm.answers("segments", "old-orders-3")
        assert row["start_offset"] == 100
