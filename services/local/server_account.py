"""Give PostgreSQL an account of its own if root starts it, because PostgreSQL refuses root."""

import os
import pwd
import random
from pathlib import Path

import psutil

UIDS = range(61_184, 65_520)
"""Users without an entry in the system's list, which systemd too gives to services for a time."""

INITDB_ACCOUNT = "nobody"
"""The user of initdb, which requires an entry in that list; it never sees a password."""


def server_uid(cluster: Path) -> int | None:
    """Return the user that runs the server of a cluster: its owner; None for this user.

    A new cluster, or one that an account of several services owns, gets a user that has no other
    process.
    """
    if os.geteuid() != 0:
        return None
    owner = cluster.stat().st_uid if cluster.exists() else 0
    return owner if owner in UIDS else _unused_uid()


def hand_over(directory: Path, uid: int | None) -> None:
    """Give a directory, with everything in it, to a user; None: leave it."""
    if uid is None or directory.stat().st_uid == uid:
        return
    for root, folders, files in os.walk(directory):
        for name in (*folders, *files):
            os.lchown(Path(root) / name, uid, uid)
    os.chown(directory, uid, uid)  # last: it shows that all was done


def _unused_uid() -> int:
    busy = {uid for process in psutil.process_iter() for uid in _uids_of(process)}
    for uid in random.sample(UIDS, len(UIDS)):
        if uid not in busy and not _has_entry(uid):
            return uid
    raise RuntimeError(f"no user is free from {UIDS.start} to {UIDS.stop - 1} for PostgreSQL")


def _uids_of(process: psutil.Process) -> tuple[int, ...]:
    try:
        uids = process.uids()
    except psutil.Error:
        return ()
    return uids.real, uids.effective, uids.saved


def _has_entry(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
