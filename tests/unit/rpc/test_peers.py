"""Which connections count as one party's, by what gRPC calls their peers."""

import pytest

from services.rpc.server.admission import address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50051", "ipv4:192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:443", "ipv6:2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:443", "ipv6:2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "ipv6:fe80::1"),
        ("ipv6:%5Bfd12:3456:789a:1::7%5D:50051", "ipv6:fd12:3456:789a:1::7"),
        ("ipv6:%5Bfc00::7%5D:50051", "ipv6:fc00::7"),
        ("ipv6:%5B::1%5D:443", "ipv6:::1"),
        ("ipv6:%5B::2%5D:443", "ipv6:::/64"),
        ("ipv6:%5Bfec0::1%5D:443", "ipv6:fec0::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:443", "ipv4:192.0.2.7"),
        ("unix:/run/sediment.sock", "unix:/run/sediment.sock"),
        ("unix:", "unix:"),
        ("ipv6:%5Bnobody%5D:1", "ipv6:nobody"),
        ("", ""),
    ],
)
def test_a_party_is_an_address_and_of_global_ipv6_a_64(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_hosts_of_one_private_network_are_as_many_parties() -> None:
    brokers = [f"ipv6:%5Bfd00:1:2:3::{host:x}%5D:{port}" for host in range(1, 4) for port in (1, 2)]
    assert len({address_of(peer) for peer in brokers}) == 3


def test_all_that_a_host_may_call_itself_is_one_party() -> None:
    peers = [f"ipv6:%5B2001:db8::{host:x}%5D:{port}" for host in range(50) for port in (1, 2)]
    assert {address_of(peer) for peer in peers} == {"ipv6:2001:db8::/64"}
    assert address_of("ipv6:%5B2001:db8:0:1::%5D:1") not in {address_of(peer) for peer in peers}
