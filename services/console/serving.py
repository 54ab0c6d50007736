"""Build the console of its settings and serve it."""

from collections.abc import Callable

from services.api.errors import InvalidRequestError
from services.common.client_security import ClientSecurity
from services.common.console_settings import ConsoleSettings
from services.common.reloaded_file import FileError
from services.common.threads import end_process_with_threads
from services.console.app import CHART_LIBRARY, create_app
from services.console.server import http_server, listening_socket, run, url_of
from services.console.tier import ServiceAddresses, connected_tier
from services.local.installation import how_to_install
from services.rpc.server.policy import policy_file
from services.rpc.server.sockets import raise_descriptor_limit
from services.rpc.server.transport import open_tls
from services.rpc.tls import TlsFiles


def serve_console(
    settings: ConsoleSettings,
    security_for: Callable[[str], ClientSecurity],
    say_where: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        security_for: how to connect to a service at an address.
        say_where: is called with the URL once the port is bound.

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
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    client_ca, policy_path = settings.tls_client_ca_file, settings.policy_file
    if certificate and key and client_ca and policy_path:
        tls = open_tls(TlsFiles(certificate, key, client_ca))
        try:
            policy = policy_file(policy_path)
        except FileError as e:
            raise SystemExit(str(e)) from e
    addresses = ServiceAddresses(
        settings.rlmm_address, settings.rlm_addresses or "", settings.rsm_address or ""
    )
    try:
        with connected_tier(addresses, security_for) as tier:
            server = http_server(create_app(tier, policy), tls)
            with listening_socket(settings.listen_address) as bound:
                say_where(url_of(bound, has_tls=tls is not None))
                run(server, bound)
    except InvalidRequestError as e:
        raise SystemExit(str(e)) from e
