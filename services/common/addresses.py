"""Parse the addresses of servers: HOST:PORT, and the targets of gRPC, which may name several."""

import re
import socket
from ipaddress import ip_address

from services.api.errors import InvalidRequestError

_HOST_AND_PORT = re.compile(r"(?:\[[^\s\[\]/]+\]|[^:/\s\[\]]+):([0-9]{1,5})")
_MAX_PORT = 65_535

_TARGET_SCHEME = re.compile(r"dns:(?://[^/]*/)?|ipv[46]:")
"""How a target of gRPC begins that is more than HOST:PORT."""


def require_address(address: str, least_port: int = 1) -> str:
    """Check that an address is HOST:PORT, an IPv6 host in brackets; return it.

    Raises:
        InvalidRequestError: it is not. (gRPC would take port 443 if there is none.)
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is None or not least_port <= int(match[1]) <= _MAX_PORT:
        raise InvalidRequestError(
            f"{address!r} is not HOST:PORT; write, for example, localhost:50051 or [::1]:50051"
        )
    return address


def split_address(address: str) -> tuple[str, int]:
    """Return the host of an address, without brackets, and its port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined_address(host: str, port: int) -> str:
    """Return HOST:PORT, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(address: str) -> str:
    """Return the address at which others reach a server, with this machine's name for 0.0.0.0."""
    host, port = split_address(address)
    return joined_address(socket.gethostname(), port) if host in ("0.0.0.0", "::") else address


def each_address(targets: str) -> list[str]:
    """Return each HOST:PORT of a target of gRPC, or of several servers with commas between them.

    An empty text, of a service whose address is not known, is one empty address.

    Raises:
        InvalidRequestError: as require_address.
    """
    if not targets:
        return [targets]
    scheme = _TARGET_SCHEME.match(targets)
    addresses = targets[scheme.end() if scheme else 0 :].split(",")
    return [require_address(each.strip()) for each in addresses]


def target_of(address: str, *, has_tls: bool = False) -> str:
    """Check the target of one channel: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT.

    Raises:
        InvalidRequestError: it is none, or it names several servers whose certificates cannot be
            checked.
    """
    addresses = each_address(address)
    if len(addresses) > 1 and _TARGET_SCHEME.match(address) is None:
        raise InvalidRequestError(
            f"{address!r} names several servers; write ipv4:{','.join(addresses)} if they are IP "
            "addresses, or a host name that resolves to all of them"
        )
    if len(addresses) > 1 and has_tls:
        raise InvalidRequestError(
            f"{address!r}: TLS checks one name for all servers of a target; write a host name that "
            "resolves to all of them, and that their certificates have"
        )
    return address.strip()


def is_loopback(address: str) -> bool:
    """Return whether HOST or HOST:PORT is this machine's own, without resolving a name."""
    host, colon, port = address.rpartition(":")
    name = (host if colon and port.isdecimal() else address).strip("[]")
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def other_machine(targets: str) -> str | None:
    """Return the first HOST:PORT of `targets` that is not this machine; None if all are.

    Raises:
        InvalidRequestError: as require_address.
    """
    return next((each for each in each_address(targets) if not is_loopback(each)), None)
