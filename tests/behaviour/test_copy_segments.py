"""Test the adoption of another storage's segments, and the copy into LocalTieredStorage's files."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.api.errors import (
    CorruptSegmentError,
    DeletionRefusedError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.imported_segments import is_imported
from services.api.operations import RunKind, RunOutcome
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    all_events,
    all_segments,
    all_tool_runs,
)
from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
)
from services.api.segment_batches import SegmentImport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_manager
from services.rsm.layout import CustomMetadata
from services.rsm.leaving import LocalTieredStorageDirectory
from services.rsm.manager import ObjectRemoteStorageManager
from services.workflows.adoption import Adoption, delete_sources
from services.workflows.copy_segments import Copied, CopyPlan, CopyTarget, SegmentCopy
from services.workflows.scrub import Pace
from tests.contract.remote_storage_manager_contract import (
    Files,
    a_segment,
    fetched,
    index,
    some_bytes,
)
from tests.harness.databases import OwnRlmm
from tests.harness.foreign_tiers import ForeignTier, aiven_tier, imported, local_tier
from tests.harness.synthetic_log import batch_of
from tests.harness.tier import FileTier
from tests.harness.wrapper import Wrapper

PACE = Pace(lambda _: None, lambda _: None)


def whole(seed: int = 0, *, transactions: bool = True) -> Files:
    """Return a segment of five batches, and index files that RSM does not look into."""
    log = b"".join(
        batch_of(0, some_bytes(60_000, seed + number), 4711 + 10 * number, 10)
        for number in range(5)
    )
    kinds = [kind for kind in IndexType if transactions or kind is not IndexType.TRANSACTION]
    return Files(log, {kind: some_bytes(500, seed) + kind.name.encode() for kind in kinds})


@dataclass
class Copies:
    """An RLMM with imported rows, an RSM, and the location with their objects."""

    rlmm: Any
    rsm: ObjectRemoteStorageManager
    theirs: ForeignTier

    def bring(self, *contents: Files) -> list[RemoteLogSegmentMetadata]:
        """Import segments of one partition, and store their files as the other storage does."""
        rows = [imported(files) for files in contents]
        tp = rows[0].topic_id_partition
        for place, files in enumerate(contents):
            id = RemoteLogSegmentId(tp, rows[place].remote_log_segment_id.id)
            rows[place] = replace(rows[place], remote_log_segment_id=id)
            self.theirs.store(rows[place], files)
        self.rlmm.import_remote_log_segments([SegmentImport(tuple(rows))])
        return rows

    def row(self, of: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        rows = all_segments(self.rlmm, of.topic_id_partition)
        return next(r for r in rows if r.remote_log_segment_id == of.remote_log_segment_id)

    def run(self, target: CopyTarget, rlmm: Any = None, rsm: Any = None) -> Copied:
        plan = CopyPlan(uuid4().hex)
        return SegmentCopy(rlmm or self.rlmm, rsm or self.rsm, target, plan, PACE).run()

    def adopted(self, rlmm: Any = None, rsm: Any = None) -> Copied:
        target = Adoption(rlmm or self.rlmm, rsm or self.rsm, "r")
        return self.run(target, rlmm, rsm)


@pytest.fixture(params=["local-tiered-storage", "aiven"])
def copies(request: pytest.FixtureRequest, rlmm: OwnRlmm, tmp_path: Path) -> Iterator[Copies]:
    if request.param == "aiven":
        s3: S3Endpoint = request.getfixturevalue("s3")
        theirs = aiven_tier(tmp_path, s3, "read_only = false")
    else:
        theirs = local_tier(tmp_path, "read_only = false")
    with closing(build_manager(theirs.settings)) as rsm:
        rsm.check()
        yield Copies(rlmm, rsm, theirs)


def counts(done: Copied) -> tuple[int, int, int, int]:
    return done.copied, done.present, done.gone, done.failed


def assert_own(copies: Copies, row: RemoteLogSegmentMetadata, files: Files) -> None:
    now = copies.row(row)
    assert now.custom_metadata is not None
    assert CustomMetadata.from_bytes(now.custom_metadata).location_id == 1
    assert replace(now, custom_metadata=None) == replace(row, custom_metadata=None)
    assert fetched(copies.rsm, now) == files.log
    for kind, data in files.indexes.items():
        assert index(copies.rsm, now, kind) == data


def test_rows_are_read_from_own_copies_afterwards(copies: Copies) -> None:
    contents = [whole(1), whole(2, transactions=False)]
    rows = copies.bring(*contents)
    keys = copies.theirs.left()
    done = copies.adopted()
    assert counts(done) == (2, 0, 0, 0)
    assert done.copied_bytes == sum(len(each.log) for each in contents)
    for row, files in zip(rows, contents, strict=True):
        assert_own(copies, row, files)
    assert copies.theirs.left() == keys
    events = all_events(copies.rlmm, EventQuery(rows[0].topic_id_partition))
    assert [each.reason for each in events].count("adopted") == 2
    [run] = [each for each in all_tool_runs(copies.rlmm) if each.kind is RunKind.COPY]
    assert (run.counts.done_segments, run.outcome) == (2, RunOutcome.DONE)
    assert counts(copies.adopted()) == (0, 2, 0, 0)


def test_sources_are_deleted_of_adopted_segments_alone(copies: Copies) -> None:
    [row] = copies.bring(whole(1))
    assert counts(copies.adopted()) == (1, 0, 0, 0)
    [other] = copies.bring(whole(2))
    assert list(delete_sources(copies.rlmm, copies.rsm, 7, {})) == [None]
    assert {key.startswith(copies.theirs.stem(other)) for key in copies.theirs.left()} == {True}
    assert_own(copies, row, whole(1))
    assert fetched(copies.rsm, other) == whole(2).log


def test_sources_in_a_read_only_location_do_not_count_as_deleted(
    rlmm: OwnRlmm, tmp_path: Path
) -> None:
    theirs = local_tier(tmp_path)
    with closing(build_manager(theirs.settings)) as rsm:
        copies = Copies(rlmm, rsm, theirs)
        copies.bring(whole(1))
        copies.adopted()
        with pytest.raises(DeletionRefusedError, match="still there: location 7 is read-only"):
            list(delete_sources(rlmm, rsm, 7, {}))
    assert theirs.left()


class NotSwitched(Wrapper[Any]):
    """An RLMM that goes away before the row is switched."""

    def replace_segment_data(self, *arguments: object) -> None:
        raise RetriableRemoteStorageError("away")


def test_adoption_that_was_cut_short_is_continued(copies: Copies) -> None:
    [row] = copies.bring(whole(1))
    done = copies.adopted(NotSwitched(copies.rlmm))
    assert counts(done) == (0, 0, 0, 1)
    assert "away" in done.reasons[0]
    assert is_imported(copies.row(row).custom_metadata)
    assert fetched(copies.rsm, row) == whole(1).log
    assert counts(copies.adopted()) == (1, 0, 0, 0)
    assert_own(copies, row, whole(1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda log: log[:-1], r"log is damaged|only \d+ bytes"),
        (lambda log: log[:70_000] + b"x" + log[70_001:], "log is damaged: .*CRC"),
        (lambda log: log[:3] + b"\7" + log[4:], "log is damaged"),
    ],
)
def test_damaged_source_is_not_adopted(
    copies: Copies, change: Callable[[bytes], bytes], said: str
) -> None:
    files = whole(1)
    [row, sound] = copies.bring(files, whole(2))
    copies.theirs.backend.put(f"{copies.theirs.stem(row)}.log", change(files.log))
    done = copies.adopted()
    assert counts(done) == (1, 0, 0, 1)
    with pytest.raises(CorruptSegmentError, match=said):
        raise CorruptSegmentError(done.reasons[0])
    assert is_imported(copies.row(row).custom_metadata)
    assert_own(copies, sound, whole(2))


class Lossy(Wrapper[Any]):
    """An RSM whose store changes a byte of each own copy."""

    def fetch_index(self, metadata: Any, kind: IndexType, **options: Any) -> Iterator[bytes]:
        data = b"".join(self.real.fetch_index(metadata, kind, **options))
        is_own = not is_imported(metadata.custom_metadata)
        yield b"x" + data[1:] if is_own and kind is IndexType.OFFSET else data


def test_copy_that_is_not_its_source_does_not_count(copies: Copies) -> None:
    [row] = copies.bring(whole(1))
    done = copies.adopted(rsm=Lossy(copies.rsm))
    assert counts(done) == (0, 0, 0, 1)
    assert "OFFSET of the copy has 506 bytes with crc32c" in done.reasons[0]
    assert is_imported(copies.row(row).custom_metadata)


class MarkedMeanwhile(Wrapper[Any]):
    """An RLMM in which the segment is marked for deletion during the copy."""

    def replace_segment_data(self, segment_id: RemoteLogSegmentId, *arguments: Any) -> Any:
        self.real.update_remote_log_segment_metadata(
            RemoteLogSegmentMetadataUpdate(
                segment_id, 1, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1
            )
        )
        return self.real.replace_segment_data(segment_id, *arguments)


def test_segment_that_is_deleted_meanwhile_leaves_no_copy(copies: Copies) -> None:
    [row] = copies.bring(whole(1))
    assert counts(copies.adopted(MarkedMeanwhile(copies.rlmm))) == (0, 0, 1, 0)
    assert copies.rsm.find_partition_object(row.topic_id_partition) is None
    assert copies.theirs.left()


def test_files_of_local_tiered_storage_are_written_and_continued(
    tier: FileTier, tmp_path: Path
) -> None:
    leaving = tmp_path / "leaving"
    leaving.mkdir()
    copies = Copies(tier.rlmm, tier.rsm, local_tier(tmp_path))
    contents = [whole(1), whole(2, transactions=False)]
    rows = [tier.copy(a_segment(len(each.log), 4711, tier.tp.topic_id), each) for each in contents]
    target = LocalTieredStorageDirectory(leaving)
    assert counts(copies.run(target)) == (2, 0, 0, 0)
    assert counts(copies.run(LocalTieredStorageDirectory(leaving))) == (0, 2, 0, 0)
    names = sorted(path.name for path in leaving.rglob("*") if path.is_file())
    assert len(names) == 11
    assert not [name for name in names if "~" in name]
    epochs = next(leaving.rglob("*.leader_epoch_checkpoint"))
    epochs.unlink()
    assert counts(copies.run(LocalTieredStorageDirectory(leaving))) == (1, 1, 0, 0)
    theirs = ForeignTier(
        local_tier(tmp_path).settings,
        "local-tiered-storage",
        tier.store,
        "leaving/kafka-tiered-storage/",
    )
    for row, files in zip(rows, contents, strict=True):
        assert tier.store.get(f"{theirs.stem(row)}.log") == files.log
        assert tier.store.get(f"{theirs.stem(row)}.index") == files.indexes[IndexType.OFFSET]


def test_write_that_fails_leaves_no_part_of_a_file(tier: FileTier, tmp_path: Path) -> None:
    leaving = tmp_path / "leaving"
    leaving.mkdir()
    files, target = whole(1), LocalTieredStorageDirectory(leaving)
    row = a_segment(len(files.log), 4711, tier.tp.topic_id)

    def broken_off() -> Iterator[SegmentChunk]:
        yield SegmentChunk(SegmentFile.LOG, files.log[:1000])
        raise RetriableRemoteStorageError("away")

    with pytest.raises(RetriableRemoteStorageError, match="away"):
        target.write(row, LogSegmentData(files.headers(), broken_off()))
    assert [path for path in leaving.rglob("*") if path.is_file()] == []
    assert target.wants(row)
