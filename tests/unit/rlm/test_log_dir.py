import math
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log import log_dir as log_dir_module
from services.rlm.kafka_log.checkpoints import read_log_start_offsets, read_partition_metadata
from services.rlm.kafka_log.log_dir import SkippedFolder, find_partitions, free_bytes
from services.rlm.kafka_log.partition_dir import (
    LogDirError,
    LogFileError,
    fingerprint_of,
    list_segments,
    read_lineage,
)
from tests.harness.eventually import eventually
from tests.unit.rlm.kafka_bytes import (
    NAME,
    PartitionFiles,
    batch,
    three_segments,
    write_log_dir,
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return write_log_dir(tmp_path / "logs")


def refusal(path: Path) -> LogDirError:
    with pytest.raises(LogDirError) as caught:
        find_partitions([path])
    assert str(path) in str(caught.value)
    return caught.value


def test_a_directory_that_is_named_twice_is_refused(log_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(log_dir)
    for again in (log_dir, link, log_dir / ".." / log_dir.name):
        with pytest.raises(LogDirError) as caught:
            find_partitions([log_dir, again])
        assert str(caught.value) == f"{again}: is named twice, also as {log_dir}"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: None, "no such directory", id="missing"),
        pytest.param(Path.mkdir, "is empty", id="empty"),
        pytest.param(lambda path: path.symlink_to(path), "", id="unreadable, even by root"),
        pytest.param(Path.touch, "ot a directory", id="file"),
        pytest.param(
            lambda path: (path / "photos-2024").mkdir(parents=True),
            "not a Kafka log directory",
            id="of other things",
        ),
    ],
)
def test_a_directory_that_is_not_kafkas_is_named(
    tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    make(tmp_path / "here")
    assert reason in str(refusal(tmp_path / "here"))


def test_a_partitions_own_folder_is_recognized(log_dir: Path) -> None:
    assert "log directory above" in str(refusal(three_segments(log_dir).path))


def test_without_meta_properties_the_broker_is_not_known(log_dir: Path) -> None:
    three_segments(log_dir)
    (log_dir / "meta.properties").unlink()
    assert "meta.properties" in str(refusal(log_dir))


def test_a_broker_without_an_id_is_refused(log_dir: Path) -> None:
    (log_dir / "meta.properties").write_text("version=1\n")
    with pytest.raises(LogDirError, match=r"broker\.id"):
        find_partitions([log_dir])


@pytest.mark.parametrize("line", ["node.id=12", "broker.id=12", "broker.id = 12"])
def test_the_broker_id_is_read_in_either_form(log_dir: Path, line: str) -> None:
    (log_dir / "meta.properties").write_text(f"#comment\n{line}\nversion=0\n")
    assert find_partitions([log_dir]).broker_id == 12


def test_directories_of_several_brokers_are_refused(log_dir: Path, tmp_path: Path) -> None:
    other = write_log_dir(tmp_path / "other", broker_id=8)
    with pytest.raises(LogDirError, match="several brokers"):
        find_partitions([log_dir, other])


def test_one_bad_directory_does_not_stop_the_others(log_dir: Path, tmp_path: Path) -> None:
    three_segments(log_dir)
    found = find_partitions([tmp_path / "nowhere", log_dir])
    assert list(found.partitions) == [NAME]
    assert [p.path for p in found.problems] == [str(tmp_path / "nowhere")]


def test_partitions_of_several_directories_are_found(log_dir: Path, tmp_path: Path) -> None:
    other = write_log_dir(tmp_path / "other")
    second = TopicIdPartition(NAME.topic_id, NAME.topic, 1)
    three_segments(log_dir)
    three_segments(other, second)
    assert set(find_partitions([log_dir, other]).partitions) == {NAME, second}


def test_the_same_partition_twice_is_a_problem(log_dir: Path, tmp_path: Path) -> None:
    other = write_log_dir(tmp_path / "other")
    first, second = three_segments(log_dir), three_segments(other)
    found = find_partitions([log_dir, other])
    assert found.partitions[NAME].path == first.path
    (problem,) = found.problems
    assert (problem.path, problem.blocked_segments) == (str(second.path), 2)


@pytest.fixture
def read_of(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders whose partition.metadata is read."""
    folders: list[Path] = []

    def noted(path: Path, topic: str, partition: int) -> TopicIdPartition:
        folders.append(path)
        return read_partition_metadata(path, topic, partition)

    monkeypatch.setattr(log_dir_module, "read_partition_metadata", noted)
    return folders


def settle(*paths: Path) -> None:
    """Wait until another change of the files would be detected."""
    eventually(lambda: all(fingerprint_of(path) is not None for path in paths))


def test_a_folder_that_has_not_changed_is_not_read_again(
    log_dir: Path, read_of: list[Path]
) -> None:
    files = three_segments(log_dir)
    settle(files.path, files.path / "partition.metadata")
    found = find_partitions([log_dir])
    assert find_partitions([log_dir], find_partitions([log_dir], found)) == found
    assert read_of == [files.path]


def test_a_topic_id_that_has_changed_is_seen(log_dir: Path) -> None:
    files = three_segments(log_dir)
    metadata = files.path / "partition.metadata"
    settle(files.path, metadata)
    found = find_partitions([log_dir])
    new = TopicIdPartition(uuid4(), NAME.topic, 0)
    metadata.write_text(f"version: 0\ntopic_id: {uuid_to_text(new.topic_id)}")
    settle(metadata)
    assert set(find_partitions([log_dir], found).partitions) == {new}


def test_a_folder_that_was_put_in_its_place_is_seen(log_dir: Path, tmp_path: Path) -> None:
    files = three_segments(log_dir)
    settle(files.path, files.path / "partition.metadata")
    found = find_partitions([log_dir])
    new = TopicIdPartition(uuid4(), NAME.topic, 0)
    files.path.rename(tmp_path / "old")
    others = three_segments(log_dir, new)
    settle(others.path, others.path / "partition.metadata")
    assert set(find_partitions([log_dir], found).partitions) == {new}


def test_of_a_folder_without_a_log_nothing_is_kept(log_dir: Path) -> None:
    files = three_segments(log_dir)
    settle(files.path, files.path / "partition.metadata")
    found = find_partitions([log_dir])
    for base in (0, 10, 20):
        files.file(base, ".log").unlink()
    found = find_partitions([log_dir], found)
    assert not found.partitions
    assert not found.fingerprints


def test_dots_and_dashes_belong_to_the_topic(log_dir: Path) -> None:
    name = TopicIdPartition(uuid4(), "orders.eu-west-1", 12)
    PartitionFiles(log_dir, name).segment(0, [batch(0)])
    assert list(find_partitions([log_dir]).partitions) == [name]


@pytest.mark.parametrize(
    "folder",
    ["remote-log-index-cache", "t-00", "lost+found"],
)
def test_folders_of_other_kinds_are_ignored(log_dir: Path, folder: str) -> None:
    three_segments(log_dir).path.rename(log_dir / folder)
    found = find_partitions([log_dir])
    assert (found.partitions, found.problems, found.skipped) == ({}, [], {})


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("t-0.3f2b9a6f1c2d4e5f8a9b0c1d2e3f4a5b-delete", SkippedFolder.DELETE),
        ("t-0.3f2b9a6f1c2d4e5f8a9b0c1d2e3f4a5b-future", SkippedFolder.FUTURE),
        ("t-0.3f2b9a6f1c2d4e5f8a9b0c1d2e3f4a5b-stray", SkippedFolder.STRAY),
        ("__consumer_offsets-0", SkippedFolder.INTERNAL),
        ("__cluster_metadata-0", SkippedFolder.INTERNAL),
    ],
)
def test_folders_that_are_not_copied_are_counted(
    log_dir: Path, folder: str, why: SkippedFolder
) -> None:
    three_segments(log_dir).path.rename(log_dir / folder)
    found = find_partitions([log_dir])
    assert (found.partitions, found.problems, found.skipped) == ({}, [], {why: 1})


def test_a_folder_without_a_segment_is_counted(log_dir: Path) -> None:
    three_segments(log_dir)
    (log_dir / "empty-0").mkdir()
    assert find_partitions([log_dir]).skipped == {SkippedFolder.EMPTY: 1}


def test_missing_partition_metadata_is_named_and_others_continue(log_dir: Path) -> None:
    three_segments(log_dir)
    other = three_segments(log_dir, TopicIdPartition(uuid4(), "u", 0))
    (other.path / "partition.metadata").unlink()
    found = find_partitions([log_dir])
    assert list(found.partitions) == [NAME]
    (problem,) = found.problems
    assert problem.kind is ProblemKind.PARTITION_METADATA_MISSING
    assert (problem.path, problem.blocked_segments) == (str(other.path / "partition.metadata"), 2)


@pytest.mark.parametrize(
    "text",
    ["", "version: 1\ntopic_id: x", "version: 0", "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"],
)
def test_damaged_partition_metadata_is_named(log_dir: Path, text: str) -> None:
    (three_segments(log_dir).path / "partition.metadata").write_text(text)
    (problem,) = find_partitions([log_dir]).problems
    assert problem.kind is ProblemKind.PARTITION_METADATA_INVALID


def test_segments_are_listed_by_base_offset_and_the_last_is_active(log_dir: Path) -> None:
    segments = list_segments(three_segments(log_dir).path)
    assert [(s.base_offset, s.next_base_offset) for s in segments] == [
        (0, 10),
        (10, 20),
        (20, None),
    ]


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_files_on_their_way_in_or_out_are_no_segments(log_dir: Path, suffix: str) -> None:
    files = three_segments(log_dir)
    files.file(0, ".log").rename(files.file(0, ".log" + suffix))
    assert [s.base_offset for s in list_segments(files.path)] == [10, 20]


def test_links_to_segments_are_segments(log_dir: Path, tmp_path: Path) -> None:
    files = three_segments(log_dir)
    for log in files.path.glob("*.log"):
        log.rename(tmp_path / log.name)
        log.symlink_to(tmp_path / log.name)
    (tmp_path / f"{10:020}.log").unlink()  # a link that leads nowhere has vanished
    segments = list_segments(files.path)
    assert [s.base_offset for s in segments] == [0, 20]
    assert segments[0].size_bytes == 136


def test_log_start_offsets_are_read(log_dir: Path) -> None:
    (log_dir / "log-start-offset-checkpoint").write_text("0\n2\nt 0 5\na.b-c 1 7\n")
    assert read_log_start_offsets(log_dir) == {("t", 0): 5, ("a.b-c", 1): 7}


def test_a_log_start_checkpoint_that_was_only_just_made_lists_none(log_dir: Path) -> None:
    (log_dir / "log-start-offset-checkpoint").touch()
    assert read_log_start_offsets(log_dir) == {}


@pytest.mark.parametrize("text", ["\n", "1\n0\n", "0\n2\nt 0 5\n", "0\n1\nt 0 x\n"])
def test_a_damaged_log_start_checkpoint_is_named(log_dir: Path, text: str) -> None:
    three_segments(log_dir)
    (log_dir / "log-start-offset-checkpoint").write_text(text)
    found = find_partitions([log_dir])
    assert [p.kind for p in found.problems] == [ProblemKind.UNREADABLE]
    assert found.partitions[NAME].log_start_offset is None


@pytest.mark.parametrize("text", [None, "0\n1\nx y\n", "0\n2\n0 0\n"])
def test_missing_or_damaged_leader_epochs_are_named(log_dir: Path, text: str | None) -> None:
    checkpoint = three_segments(log_dir).path / "leader-epoch-checkpoint"
    checkpoint.unlink()
    if text is not None:
        checkpoint.write_text(text)
    with pytest.raises(LogFileError) as caught:
        read_lineage(checkpoint.parent)
    assert (caught.value.kind, caught.value.path) == (
        ProblemKind.LEADER_EPOCHS_MISSING,
        checkpoint,
    )


def test_topic_ids_are_read_in_kafkas_form(log_dir: Path) -> None:
    text = (three_segments(log_dir).path / "partition.metadata").read_text()
    assert uuid_to_text(NAME.topic_id) in text
    assert list(find_partitions([log_dir]).partitions) == [NAME]


def test_the_fullest_disk_counts_and_one_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    total_bytes = shutil.disk_usage(tmp_path).total
    assert 0 < free_bytes([tmp_path]) <= total_bytes
    assert math.isnan(free_bytes([tmp_path, tmp_path / "gone"]))
