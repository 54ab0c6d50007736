"""Build the console of its settings and serve it."""

import asyncio
from collections.abc import Callable

from services.api.errors import InvalidRequestError
from services.common.client_security import ClientSecurity
from services.common.console_settings import ConsoleSettings
from services.common.reloaded_file import FileError
from services.common.threads import end_process_with_threads
from services.console.app import create_app
from services.console.server import end_by_signals, http_server, listening_socket, url_of
from services.console.tier import connected_tier
from services.local.installation import CHART_LIBRARY, how_to_install
from services.rpc.server.policy import policy_file
from services.rpc.server.sockets import raise_descriptor_limit
from services.rpc.server.transport import open_tls
from services.views.endpoints import ServiceAddresses


def serve_console(
    settings: ConsoleSettings,
    security_for: Callable[[str], ClientSecurity],
    report_url: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        security_for: how to connect to a service at an address.
        report_url: is called with the URL once the port is bound.

    Raises:
        SystemExit: a file cannot be used, or the address cannot be listened on; names it.
    """
    end_process_with_threads()
    raise_descriptor_limit()
    if not CHART_LIBRARY.exists():
        raise SystemExit(
            f"the charting library {CHART_LIBRARY} is missing; "
            + how_to_install("console", "install-console")
        )
    tls = policy = None
    if settings.has_tls and settings.policy_file is not None:
        tls = open_tls(settings, settings.tls_client_ca_file)
        try:
            policy = policy_file(settings.policy_file)
        except FileError as e:
            raise SystemExit(str(e)) from e
    addresses = ServiceAddresses(
        settings.rsm_address or "", settings.rlmm_address, settings.rlm_addresses or ""
    )
    try:
        with connected_tier(addresses, security_for) as tier:
            server = http_server(create_app(tier, policy), tls)
            end_by_signals(server)
            with listening_socket(settings.listen_address) as bound:
                report_url(url_of(bound, has_tls=tls is not None))
                asyncio.run(server.serve(sockets=[bound]))
    except InvalidRequestError as e:
        raise SystemExit(str(e)) from e
