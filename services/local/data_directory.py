"""Lock a stack's data directory, clean up after killed runs, and keep its state file."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import platformdirs

from services.common.client_security import NOT_CHOSEN, ClientSecurity, SecurityOptions

POSTGRES = "postgres"
SERVICES = "services"
INDEX_CACHE = "index-cache"
KEYS = "keys"
CREDENTIALS = "credentials.json"
TLS = "tls"
STATE = "stack.json"
OWNER = "stack.pid"
_FOLDERS = (POSTGRES, SERVICES, INDEX_CACHE, KEYS, TLS)

_FILES = (
    STATE,
    f"{STATE}.new",
    OWNER,
    f"{OWNER}.new",
    CREDENTIALS,
    f"{CREDENTIALS}.new",
)
"""Files of a stack besides the lock and the mark, which stay."""

_LOCK = "lock"
_MARK = "sediment-data"
_MARK_TEXT = "Data of `sediment up`, which uses a directory only if this file is in it.\n"
_SHARED_BY_USERS_MODE = 0o711
_SHOWN_NAMES = 3


class DataDirectoryError(RuntimeError):
    """The data directory cannot be used; the message has the reason and the remedy."""


def default_directory() -> Path:
    """Return the user's data directory; for root a directory that PostgreSQL's user can enter
    too.
    """
    if os.geteuid() == 0:
        return Path("/var/tmp/sediment")
    return platformdirs.user_data_path("sediment", appauthor=False)


def check_apart(directory: Path, log_dirs: Sequence[Path]) -> None:
    """Raise DataDirectoryError if a log directory is `directory`, lies in it or contains it."""
    ours = Path(os.path.realpath(directory))
    for log_dir in log_dirs:
        brokers = Path(os.path.realpath(log_dir))
        if ours.is_relative_to(brokers) or brokers.is_relative_to(ours):
            raise DataDirectoryError(
                f"{directory}: the log directory {log_dir} is the same directory, lies in it or "
                "contains it; choose another data directory"
            )


class Store(StrEnum):
    """The kind of a stack's store, and the folder of its data."""

    S3 = "s3"
    GCS = "gcs"
    AZURE = "azure"


def check_store(directory: Path, store: Store) -> None:
    """Raise DataDirectoryError if the directory has the data of another kind of store."""
    for other in Store:
        if other is not store and (directory / other).exists():
            raise DataDirectoryError(
                f"{directory} was made with --store {other}, and was to start with {store}; give "
                f"--store {other} or another --data-dir, or --fresh to delete what is stored"
            )


@contextmanager
def locked(directory: Path, fresh: bool) -> Iterator[None]:
    """Lock the directory for one stack and end the remains of a killed run.

    With `fresh`, first removes everything that stacks made in the directory; other files stay.

    Raises:
        DataDirectoryError: another stack uses the directory, or it is not Sediment's; it is
            unchanged.
    """
    with _refusals_named(directory):
        _check_is_ours(directory)
        directory.mkdir(parents=True, exist_ok=True, mode=_SHARED_BY_USERS_MODE)
        with _opened_own(directory) as descriptor:
            lock = _open_lock(descriptor)
    with lock:  # closing the file, or the end of the process, releases the lock
        with _refusals_named(directory):
            _acquire(directory, lock)
            if fresh:
                _empty(directory)
        yield


@contextmanager
def _refusals_named(directory: Path) -> Iterator[None]:
    """Convert errors of the operating system to DataDirectoryError."""
    try:
        yield
    except OSError as e:
        why = e.strerror or type(e).__name__
        raise DataDirectoryError(
            f"{directory} cannot be used: {why}; choose another data directory"
        ) from e


@contextmanager
def _opened_own(directory: Path) -> Iterator[int]:
    """Open a directory that is no symbolic link and belongs to this user.

    The owner is checked on the opened directory, which cannot be replaced any more.

    Raises:
        DataDirectoryError: the directory is a symbolic link or belongs to another user.
    """
    _require_no_link(directory)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _require_own(directory, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_lock(directory: int) -> TextIO:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    return os.fdopen(os.open(_LOCK, flags, 0o600, dir_fd=directory), "w")


def _read_own(path: Path, directory: int) -> bytes:
    """Read a file in an opened directory; no symbolic link, and no file of another user."""
    _require_no_link(path)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO must not block
    descriptor = os.open(path.name, flags, dir_fd=directory)
    try:
        _require_own(path, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


def _require_own(path: Path, descriptor: int) -> None:
    owner = os.fstat(descriptor).st_uid
    if owner != os.geteuid():
        raise DataDirectoryError(
            f"{path} belongs to another user (uid {owner}, this is uid {os.geteuid()}); choose "
            "another --data-dir"
        )


def _require_no_link(path: Path) -> None:
    """Name a symbolic link, which O_NOFOLLOW refuses with an error of other meanings."""
    if path.is_symlink():
        raise DataDirectoryError(
            f"{path} is a symbolic link, which is not trusted; choose another --data-dir or give "
            "the directory itself"
        )


def _acquire(directory: Path, lock: TextIO) -> None:
    # Imported here and below, because commands that are given addresses must not wait for psutil.
    from services.local.pid_files import end_leftover

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise DataDirectoryError(
            f"{directory}: another stack is running on this directory; stop it or choose another "
            "data directory"
        ) from e
    (directory / _MARK).write_text(_MARK_TEXT)
    for folder in (*_FOLDERS, *Store):
        for pid_file in (directory / folder).glob("*.pid"):
            end_leftover(pid_file)


def _check_is_ours(directory: Path) -> None:
    """Check without writing that the directory is missing, empty or Sediment's."""
    try:
        with _opened_own(directory) as descriptor:
            names = set(os.listdir(descriptor))
    except FileNotFoundError:
        return
    # A run that was killed before it wrote the mark left its empty lock.
    is_only_lock = names == {_LOCK} and (directory / _LOCK).lstat().st_size == 0
    if not names or _MARK in names or is_only_lock:
        return
    raise DataDirectoryError(
        f"{directory} holds {_shown(names)} and is no data directory of Sediment's; it was left "
        "unchanged. Choose a new or an empty directory"
    )


def _shown(names: set[str]) -> str:
    strange = sorted(names - {_LOCK, *_FOLDERS, *Store, *_FILES}) or sorted(names)
    others = len(strange) - _SHOWN_NAMES
    return ", ".join(strange[:_SHOWN_NAMES]) + (f" and {others} more" if others > 0 else "")


def _empty(directory: Path) -> None:
    for entry in (directory / name for name in (*_FOLDERS, *Store, *_FILES)):
        # Of a link, remove only the link.
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


@dataclass(frozen=True)
class StackEndpoints:
    """The addresses (HOST:PORT, empty if not run) and pids of a running stack, without secrets.

    Attributes:
        rlm_consumers: RLM's listener for consumers of Kafka.
        database_url: without the password.
        store: the kind of the store, a value of Store.
        s3_endpoint, s3_bucket, s3_prefix: of the store, of whichever kind.
        s3_region: empty unless the store is S3.
        locations_file: RSM_LOCATIONS_FILE; empty if the store is S3.
        credentials_file: has StackCredentials as JSON; only the user of the stack can read it.
        deployment_id: marks the bucket as this stack's.
        tls_ca, tls_certificate, tls_key: the files of the operator's commands; empty if the stack
            serves plaintext.
    """

    rsm: str
    rsm_health: str
    rsm_metrics: str
    rlmm: str
    rlmm_health: str
    rlmm_metrics: str
    rlm: str
    rlm_health: str
    rlm_metrics: str
    rlm_consumers: str
    store: str
    s3_endpoint: str
    s3_region: str
    s3_bucket: str
    s3_prefix: str
    locations_file: str
    deployment_id: str
    database_url: str
    credentials_file: str
    data_directory: str
    tls_ca: str
    tls_certificate: str
    tls_key: str
    pids: dict[str, int]

    def serves(self, addresses: Sequence[str]) -> bool:
        """Return whether the services of this stack have all these addresses."""
        return set(addresses) <= {self.rsm, self.rlmm, self.rlm}

    @property
    def security(self) -> SecurityOptions:
        """Return the files of the operator's commands; nothing is chosen if there are none."""
        if not self.tls_ca:
            return NOT_CHOSEN
        files = (self.tls_ca, self.tls_certificate, self.tls_key)
        return SecurityOptions(ClientSecurity(*map(Path, files)))


@dataclass(frozen=True)
class StackCredentials:
    """The secrets of a running stack; database_url has the password, keys are empty but for S3."""

    s3_access_key: str
    s3_secret_key: str = field(repr=False)
    database_password: str = field(repr=False)
    database_url: str = field(repr=False)


def write_secret(path: Path, secret: str) -> Path:
    """Write a file that only its user can read, atomically; return it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    making = path.with_name(f"{path.name}.new")
    making.unlink(missing_ok=True)
    making.touch(mode=0o600, exist_ok=False)
    making.write_text(secret)
    return making.rename(path)


def write_credentials(directory: Path, credentials: StackCredentials) -> None:
    """Write the file to which StackEndpoints.credentials_file points."""
    write_secret(directory / CREDENTIALS, json.dumps(asdict(credentials), indent=2) + "\n")


def read_credentials(endpoints: StackEndpoints) -> StackCredentials:
    """Read the secrets of a running stack."""
    return StackCredentials(**json.loads(Path(endpoints.credentials_file).read_text()))


def write_state(directory: Path, endpoints: StackEndpoints) -> None:
    """Write the state file of the stack that this process runs; only its user can read it."""
    from services.local.pid_files import write_pid_file

    write_pid_file(directory / OWNER, os.getpid())
    write_secret(directory / STATE, json.dumps(asdict(endpoints), indent=2) + "\n")


def remove_state(directory: Path) -> None:
    """Remove the state file; a missing one is no error."""
    (directory / STATE).unlink(missing_ok=True)
    (directory / OWNER).unlink(missing_ok=True)


def running_stack(directory: Path | None = None) -> StackEndpoints | None:
    """Return the stack that runs on `directory` (or the default directory) now, or None.

    Root's default directory is in a place where each user can make it, with a state file that
    names the services of that user. So only directories and files of this user are read.

    Raises:
        DataDirectoryError: the state file cannot be read, or it, the pid file or the directory is
            a symbolic link or belongs to another user.
    """
    where = directory or default_directory()
    state = where / STATE
    try:
        with _opened_own(where) as descriptor:
            stored = _read_own(state, descriptor)
            owner = _read_own(where / OWNER, descriptor)
    except FileNotFoundError:
        return None
    except OSError as e:
        why = e.strerror or type(e).__name__
        raise DataDirectoryError(
            f"{state} cannot be read: {why}; pass the --data-dir of a `sediment up` of your own"
        ) from e
    from services.local.pid_files import process_of

    if process_of(owner) is None:
        return None  # killed before it could remove its state file
    try:
        return StackEndpoints(**json.loads(stored))
    except (ValueError, TypeError) as e:
        raise DataDirectoryError(
            f"{state} is damaged or of another release of Sediment; stop the `sediment up` that "
            "runs on it and start that of this release"
        ) from e
