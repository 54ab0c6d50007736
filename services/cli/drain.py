"""Let RLMs finish what they copy and delete, and start nothing more: `sediment drain`."""

import time
from contextlib import ExitStack
from typing import Annotated

import typer

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import ActivePasses, RemoteLogManager
from services.cli.connections import Call, command_group, connected_rlm, with_services
from services.cli.output import EXIT_PARTIAL, print_json, print_table, say
from services.common.client_security import each_address

app = command_group()

_POLL_S = 0.5
_PROGRESS_EVERY_S = 5.0
_IDLE = ActivePasses(0, 0)


@app.command()
@with_services("rlm")
def drain(
    call: Call,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Start copies and deletions again.")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=0, help="Wait this long for what is active, s.")
    ] = 600.0,
) -> None:
    """Let an RLM finish copies and deletions and start none.

    For maintenance of RLM, RLMM, RSM, the store or the database. Reads are served all along, and
    uncopied segments stay on the broker's disk. With several addresses, each RLM is drained. It
    lasts until --cancel, or until the RLM is restarted.

    \b
    Exit codes:
      1  something is active after --timeout-s; the RLM stays drained
    """
    addresses = each_address(call.address("rlm"))
    with ExitStack() as stack:
        managers: dict[str, RemoteLogManager] = {
            address: stack.enter_context(connected_rlm(address, call.data_dir))
            for address in addresses
        }
        active = _drained(managers, cancel=cancel, timeout_s=timeout_s)
    if call.is_json:
        rlms = [
            {
                "address": address,
                "drained": not cancel,
                "active_copies": each.copies,
                "active_deletions": each.deletions,
            }
            for address, each in active.items()
        ]
        print_json({"rlms": rlms})
    else:
        state = "starts copies and deletions" if cancel else "drained"
        rows = [(address, state, each.copies, each.deletions) for address, each in active.items()]
        print_table("RLM", ("address", "state", "copying", "deleting"), rows)
    if not cancel and sum(active.values(), _IDLE) != _IDLE:
        say(
            f"something is still active after {timeout_s:g} s; run the command again to wait longer"
        )
        raise typer.Exit(EXIT_PARTIAL)


def _drained(
    managers: dict[str, RemoteLogManager], *, cancel: bool, timeout_s: float
) -> dict[str, ActivePasses]:
    """Drain each RLM and wait for all of them, or cancel that; return what is still active."""
    ends_s = time.monotonic() + timeout_s
    said_s = time.monotonic()
    while True:
        active = _called(managers, cancel=cancel)
        total, now_s = sum(active.values(), _IDLE), time.monotonic()
        if cancel or total == _IDLE or now_s >= ends_s:
            return active
        if now_s - said_s >= _PROGRESS_EVERY_S:
            say(f"{total.copies} partitions are copying, {total.deletions} deleting; waiting")
            said_s = now_s
        time.sleep(_POLL_S)


def _called(managers: dict[str, RemoteLogManager], *, cancel: bool) -> dict[str, ActivePasses]:
    """Call each RLM, also after one that fails; then raise the first error."""
    active: dict[str, ActivePasses] = {}
    failure: RemoteStorageError | None = None
    for address, each in managers.items():
        try:
            active[address] = each.drain(cancel=cancel)
        except RemoteStorageError as e:
            failure = failure or e
    if failure is not None:
        raise failure
    return active
