"""Who calls: one party for each address, whatever it opens there.

A host on the internet may use any address of its IPv6 /64, so that one counts as one. A private /64
is a whole network of hosts, such as all brokers of a site.
"""

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

# What a single host is given of global IPv6, at the least.
_HOST_PREFIX_LENGTH = 64
# Unique local, link-local, and this host.
_PRIVATE = tuple(map(IPv6Network, ("fc00::/7", "fe80::/10", "::1/128")))


@lru_cache(maxsize=1024)
def address_of(peer: str) -> str:
    """Of what gRPC calls a peer the part that all connections of one party have.

    "ipv4:192.0.2.1", without the port; of IPv6 the /64, but for private addresses, which count one
    by one; of a socket in the file system its name, which tells nobody apart.
    """
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    host = unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        return _counted(ip_address(host))
    except ValueError:
        return f"{kind}:{host}"


def _counted(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return _counted_v6(address) if mapped is None else f"ipv4:{mapped}"
    return f"ipv4:{address}"


def _counted_v6(address: IPv6Address) -> str:
    if any(address in network for network in _PRIVATE):
        return f"ipv6:{address}"
    return f"ipv6:{IPv6Network((address, _HOST_PREFIX_LENGTH), strict=False)}"
