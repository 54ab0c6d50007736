"""Run Squid, of the Debian package of its name: a forward proxy on the loopback."""

import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.local.process import LOOPBACK, ChildProcess, start_on_free_ports

CREDENTIALS = "sediment:of-the-proxy"
_USERS = "sediment:$apr1$sediment$gHHPqOYlSaAWabq.3jMyk.\n"
_START_TIMEOUT_MS = 60_000


@contextmanager
def squid(directory: Path) -> Iterator[tuple[str, Path]]:
    """Ask every client for CREDENTIALS; yield the URL, and the log of all requests.

    Args:
        directory: to be made, where other users can enter: as root Squid becomes another one.
    """
    directory.mkdir(mode=0o755)
    log = directory / "requests.log"
    (directory / "users").write_text(_USERS)
    if os.geteuid() == 0:
        shutil.chown(directory, "proxy")
    started: list[ChildProcess] = []

    def start(ports: Sequence[int]) -> None:
        configuration = directory / "squid.conf"
        configuration.write_text(
            f"http_port {LOOPBACK}:{ports[0]}\n"
            f"auth_param basic program /usr/lib/squid/basic_ncsa_auth {directory}/users\n"
            "acl known proxy_auth REQUIRED\nhttp_access allow known\nhttp_access deny all\n"
            "cache deny all\nmax_filedescriptors 1024\nshutdown_lifetime 0 seconds\n"
            f"access_log stdio:{log}\ncache_log {directory}/cache.log\nbuffered_logs off\n"
            f"pid_filename {directory}/squid.pid\ncoredump_dir none\npinger_enable off\n"
        )
        argv: list[str | Path] = ["/usr/sbin/squid", "-N", "-f", configuration]
        started.append(ChildProcess("squid", argv, directory))
        started[-1].start()
        started[-1].wait_until_ready(lambda: _listens(ports[0]), _START_TIMEOUT_MS)

    held = start_on_free_ports(1, start)
    try:
        yield f"http://{LOOPBACK}:{held.ports[0]}", log
    finally:
        started[-1].kill()


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((LOOPBACK, port)) == 0
