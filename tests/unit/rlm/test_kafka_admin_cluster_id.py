"""Test which cluster the log directories belong to."""

from pathlib import Path

import pytest

from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rlm.kafka_log.partition_dir import LogDirError


def log_dir(parent: Path, name: str, properties: str) -> Path:
    made = parent / name
    made.mkdir()
    (made / "meta.properties").write_text(properties)
    return made


def test_cluster_id_is_read_from_the_log_directories(tmp_path: Path) -> None:
    dirs = [log_dir(tmp_path, name, "node.id=1\ncluster.id=x-1\n") for name in ("a", "b")]
    assert read_cluster_id([tmp_path / "lost", *dirs]) == "x-1"


def test_two_clusters_are_refused(tmp_path: Path) -> None:
    dirs = [log_dir(tmp_path, name, f"cluster.id={name}\n") for name in ("a", "b")]
    with pytest.raises(LogDirError, match=r"several clusters: a in .*, b in "):
        read_cluster_id(dirs)


@pytest.mark.parametrize("properties", ["", "node.id=1\n", "cluster.id=\nversion=1\n"])
def test_no_cluster_is_refused(tmp_path: Path, properties: str) -> None:
    with pytest.raises(LogDirError, match=r"has no cluster.id"):
        read_cluster_id([log_dir(tmp_path, "a", properties)])
