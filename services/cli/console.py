"""Serve the console for oneself: `sediment console`."""

import os
import socket
import sys
from importlib.util import find_spec

from services.api.errors import InvalidRequestError
from services.cli.command import option
from services.cli.connections import Call, command_group, with_services
from services.cli.output import CommandError, say
from services.common.addresses import is_loopback, require_address, split_address
from services.local.installation import CHART_LIBRARY, how_to_install

app = command_group()


@app.command()
@with_services("rsm", "rlmm", "rlm", has_output=False)
def console(
    call: Call,
    listen: str = option(
        "Address of this machine to serve on; port 0 picks a free port.",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
    ),
) -> None:
    """Serve a page about the tier to a browser here.

    Read-only. Runs in the foreground until Ctrl-C or SIGTERM. It serves without
    TLS: every user of this machine sees what you may see. To serve others, run
    `python -m services.console` with TLS (docs/run/console.md).
    """
    addresses = call.known_addresses("rlmm", "rlm", "rsm")
    if not addresses.rlmm:
        raise CommandError("no address of RLMM is known; pass --rlmm HOST:PORT")
    _require_own_port(listen)
    if find_spec("starlette") is None or not CHART_LIBRARY.exists():
        how = how_to_install("console", "install-console")
        raise CommandError(f"the console is not installed; {how}")
    known = [address for _, address in addresses.pairs() if address]
    security = call.security_options(known)
    for address in known:
        security.security_for(address)
    others = {name: value for name, value in os.environ.items() if not name.startswith("CONSOLE_")}
    settings = {
        "CONSOLE_LISTEN_ADDRESS": listen,
        "CONSOLE_RLMM_ADDRESS": addresses.rlmm,
        "CONSOLE_RLM_ADDRESSES": addresses.rlm,
        "CONSOLE_RSM_ADDRESS": addresses.rsm,
    }
    say("without TLS: every user of this machine sees what you may see; Ctrl-C stops it")
    sys.stdout.flush()
    command = [sys.executable, "-m", "services.console"]
    os.execve(sys.executable, command, {**others, **security.to_environment(), **settings})


def _require_own_port(listen: str) -> None:
    """Check that the console can listen on an address, which only this machine may reach.

    Raises:
        CommandError: it cannot.
    """
    try:
        host, port = split_address(require_address(listen, least_port=0))
        if not is_loopback(listen):
            raise CommandError(
                f"--listen: other machines may reach {listen}, and this serves without TLS; use "
                "127.0.0.1, or `python -m services.console` with TLS (docs/run/console.md)"
            )
        family, kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(place)
    except InvalidRequestError as e:
        raise CommandError(f"--listen: {e}") from e
    except OSError as e:
        raise CommandError(f"--listen: cannot listen on {listen}: {e.strerror}") from e
