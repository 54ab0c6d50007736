"""Find the services' addresses and probe each of them once, all at the same time."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from services.cli.connections import Call, security_options
from services.cli.output import CommandError
from services.common.client_security import ClientSecurity, each_address
from services.rpc.client.channel import open_channel
from services.rpc.client.probe import ServiceState, probe
from services.views.endpoints import Endpoint


def known_addresses(call: Call, *services: str) -> dict[str, str]:
    """Return the address of each service: "" if it is not given and no `sediment up` runs it.

    Raises:
        CommandError: no address is known at all.
    """
    found: dict[str, str] = {}
    for service in services:
        try:
            found[service] = call.address(service)
        except CommandError:
            if not (call.rsm or call.rlmm or call.rlm) and service == "rlmm":
                raise
            found[service] = ""
    return found


def probed(addresses: Mapping[str, str], data_dir: Path | None) -> list[Endpoint]:
    """Probe every address of every service; one that does not answer is no error."""
    pairs = [(s, each) for s, text in addresses.items() for each in each_address(text)]
    # Here, because the threads do not see what the user chose.
    chosen = [_security_of(address, data_dir) for _, address in pairs]

    def endpoint(service: str, address: str, security: ClientSecurity | None) -> Endpoint:
        if security is None:
            return Endpoint(service, "", ServiceState())
        with open_channel(address, security) as channel:
            return Endpoint(service, address, probe(channel))

    with ThreadPoolExecutor(len(pairs)) as pool:
        services, texts = zip(*pairs, strict=True)
        return list(pool.map(endpoint, services, texts, chosen))


def _security_of(address: str, data_dir: Path | None) -> ClientSecurity | None:
    if not address:
        return None
    return security_options([address], data_dir).security_for(address)
