"""Takes one segment's files out of a partition's folder, so that a kill anywhere does no harm.

    rename  <base>.log to <base>.log.deleted    from here on it is no segment, to Kafka and to us
    remove  its indexes and <base>.snapshot     the producers' state at its beginning
    remove  <base>.log.deleted                  last: while it is there, the rest is known to be due

A broker that starts in between finishes it: it removes `.deleted` files, indexes without a log and
snapshots that are no segment's. The next pass here does the same, by `<base>.log.deleted`.

Source: LocalLog.deleteSegmentFiles, ProducerStateManager.removeAndMarkSnapshotForDeletion,
LogLoader.removeTempFilesAndCollectSwapFiles.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from services.api.failpoints import failpoint
from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.partition_dir import LocalSegment, reading, snapshot_path

_DELETED = ".deleted"
_SWAP = ".swap"
_INDEXES = (".index", ".timeindex", ".txnindex")
_LOG = re.compile(r"(\d{20})\.log")
_LOG_DELETED = re.compile(r"(\d{20})\.log\.deleted")


def delete_segment_files(segment: LocalSegment, folder_fd: int) -> None:
    """Delete the oldest segment of a log. What reads it goes on with the file that it has open.

    Args:
        folder_fd: of the segment's folder, open.

    Raises:
        LogFileError: UNREADABLE: the files cannot be changed; what was begun, `finish_deletions`
            ends.
        FileNotFoundError: it is gone.
    """
    with reading(segment.directory):
        deleted = f"{segment.log_path.name}{_DELETED}"
        os.rename(segment.log_path.name, deleted, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        # Over a power loss, too, segments go in their order and indexes after their log.
        os.fsync(folder_fd)
        failpoint("local.log_renamed")
        _remove_rest(segment.directory, folder_fd, segment.base_offset)


def finish_deletions(directory: Path, folder_fd: int) -> int:
    """End the deletions that a killed run has left in a folder; how many.

    What lies among the segments that are there is a broker's own leftover, and its next start's to
    clear away: the snapshot at that offset may be another segment's.

    Args:
        folder_fd: of that folder, open.

    Raises:
        LogFileError: UNREADABLE, also where a broker was cut off while it put a rewritten segment
            in the place of others: its next start does that, so that nothing is sure here yet.
    """
    with reading(directory):
        names = os.listdir(folder_fd)
        swapped = next((name for name in names if name.endswith(_SWAP)), None)
        if swapped is not None:
            reason = "a broker was cut off while it replaced segments; its next start ends that"
            raise LogFileError(ProblemKind.UNREADABLE, directory / swapped, reason)
        bases = sorted(int(match[1]) for name in names if (match := _LOG_DELETED.fullmatch(name)))
        there = [int(match[1]) for name in names if (match := _LOG.fullmatch(name))]
        left = [base for base in bases if there and base < min(there)]
        for base in left:
            _remove_rest(directory, folder_fd, base)
    return len(left)


def _remove_rest(directory: Path, folder_fd: int, base_offset: int) -> None:
    stem = f"{base_offset:020}"
    for suffix in _INDEXES:
        _remove(f"{stem}{suffix}", folder_fd)
    _remove(snapshot_path(directory, base_offset).name, folder_fd)
    failpoint("local.indexes_removed")
    _remove(f"{stem}.log{_DELETED}", folder_fd)
    failpoint("local.log_removed")


def _remove(name: str, folder_fd: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder_fd)
