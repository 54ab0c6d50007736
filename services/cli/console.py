"""Serve the console for oneself: `sediment console`."""

import os
import sys
from importlib.util import find_spec
from typing import Annotated

import typer

from services.cli.connections import Call, command_group, security_options, with_services
from services.cli.endpoints import known_addresses
from services.cli.output import CommandError, say
from services.common.client_security import each_address
from services.local.installation import how_to_install

app = command_group()


@app.command()
@with_services("rsm", "rlmm", "rlm", has_output=False)
def console(
    call: Call,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address of this machine to serve on; port 0 picks a free port.",
        ),
    ] = "127.0.0.1:0",
) -> None:
    """Serve a page about the tier to a browser here.

    Read-only. Runs in the foreground until Ctrl-C or SIGTERM. It serves without
    TLS: every user of this machine sees what you may see. To serve others, run
    `python -m services.console` with TLS (docs/run/console.md).
    """
    addresses = known_addresses(call, "rlmm", "rlm", "rsm")
    if not addresses["rlmm"]:
        raise CommandError("no address of RLMM is known; pass --rlmm HOST:PORT")
    if find_spec("starlette") is None:
        raise CommandError(
            f"starlette is not installed; {how_to_install('console', 'install-console')}"
        )
    given = [each for text in addresses.values() if text for each in each_address(text)]
    security = security_options(given, call.data_dir)
    for address in given:
        security.security_for(address)
    others = {name: value for name, value in os.environ.items() if not name.startswith("CONSOLE_")}
    settings = {
        "CONSOLE_LISTEN_ADDRESS": listen,
        "CONSOLE_RLMM_ADDRESS": addresses["rlmm"],
        "CONSOLE_RLM_ADDRESSES": addresses["rlm"],
        "CONSOLE_RSM_ADDRESS": addresses["rsm"],
    }
    say("serving without TLS: every user of this machine sees what you may see; Ctrl-C stops it")
    sys.stdout.flush()
    command = [sys.executable, "-m", "services.console"]
    os.execve(sys.executable, command, {**others, **security.to_environment(), **settings})
