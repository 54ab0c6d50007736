"""Run nginx, of the Debian package nginx-light, before a server on the loopback."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from services.local.certificates import Certificate
from services.local.process import LOOPBACK, ChildProcess, start_on_free_ports

_START_TIMEOUT_MS = 30_000
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextmanager
def nginx(
    directory: Path,
    upstream: str,
    max_body: str,
    *,
    grpc: bool = False,
    tls: Certificate | None = None,
) -> Iterator[str]:
    """Pass requests on to HOST:PORT; yield nginx's HOST:PORT.

    Args:
        max_body: nginx's client_max_body_size, for example "1m".
        grpc: speak gRPC on both sides, else HTTP/1.1.
        tls: serve with this certificate.
    """
    directory.mkdir()
    started: list[ChildProcess] = []

    def start(ports: Sequence[int]) -> None:
        configuration = directory / "nginx.conf"
        text = _configuration(directory, ports[0], upstream, max_body, grpc=grpc)
        if tls is not None:
            served = f":{ports[0]} ssl; ssl_certificate {tls.certificate}; "
            text = text.replace(f":{ports[0]};", f"{served}ssl_certificate_key {tls.key};")
        configuration.write_text(text)
        started.append(ChildProcess("nginx", ["/usr/sbin/nginx", "-c", configuration], directory))
        started[-1].start()
        started[-1].wait_until_ready(lambda: _listens(ports[0]), _START_TIMEOUT_MS)

    held = start_on_free_ports(1, start)
    try:
        yield f"{LOOPBACK}:{held.ports[0]}"
    finally:
        started[-1].kill()


def _configuration(directory: Path, port: int, upstream: str, max_body: str, *, grpc: bool) -> str:
    there = f"grpc_pass grpc://{upstream}" if grpc else f"proxy_pass http://{upstream}"
    paths = [f"{each}_temp_path {directory}/{each};" for each in _TEMPORARY]
    return f"""daemon off; master_process off; pid {directory}/pid; error_log {directory}/error;
events {{}}
http {{
  access_log off; {" ".join(paths)} client_max_body_size {max_body};
  server {{
    listen {LOOPBACK}:{port}{" http2" if grpc else ""};
    location / {{ {there}; {"" if grpc else "proxy_set_header Host $http_host;"} }}
  }}
}}
"""


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((LOOPBACK, port)) == 0
