"""Keeps what a broker writes, whatever it deletes later: a hard link to each file of its logs."""

import os
from collections.abc import Sequence
from pathlib import Path

from services.api.ids import TopicIdPartition, uuid_to_text
from services.rlm.kafka_log.log_dir import find_partitions
from tests.harness.eventually import Background

_INTERVAL_S = 0.1
_SUFFIXES = (".log", ".txnindex")


class LogWitness(Background):
    """Links the logs and transaction indexes of a running broker's partitions into a directory of
    the same file system, as long as it is entered. A segment that the broker keeps for longer than
    a moment is not missed."""

    def __init__(self, log_dirs: Sequence[Path], directory: Path) -> None:
        super().__init__()
        self._log_dirs = log_dirs
        self._directory = directory

    def log(self, name: TopicIdPartition) -> bytes:
        """All that the broker has ever written into the partition."""
        return b"".join(path.read_bytes() for path in sorted(self._kept(name).glob("*.log")))

    def file(self, name: TopicIdPartition, base_offset: int, suffix: str) -> bytes:
        """A file of a segment; empty where the broker made none."""
        path = self._kept(name) / f"{base_offset:020}{suffix}"
        return path.read_bytes() if path.exists() else b""

    def look(self) -> None:
        """Link what is new."""
        for name, found in find_partitions(self._log_dirs).partitions.items():
            kept = self._kept(name)
            kept.mkdir(parents=True, exist_ok=True)
            for file in _entries(found.path):
                target = kept / file.name
                if file.suffix in _SUFFIXES and not target.exists():
                    _link(file, target)

    def run(self) -> None:
        while not self.wait(_INTERVAL_S):
            self.look()
        self.look()

    def _kept(self, name: TopicIdPartition) -> Path:
        topic_id = uuid_to_text(name.topic_id)
        return self._directory / f"{name.topic}-{name.partition}.{topic_id}"


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:  # of a topic that is being deleted
        return []


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except FileNotFoundError:
        return  # deleted since it was listed
