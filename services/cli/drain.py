"""Let RLMs finish what they copy and delete, and start nothing more: `sediment drain`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple

import typer

from services.api.errors import RemoteStorageError
from services.api.remote_log_manager import ActivePasses, RemoteLogManager
from services.cli.command import quantity, toggle
from services.cli.connections import Call, command_group, with_services
from services.cli.output import EXIT_PARTIAL, WATCHED_S, progress, say
from services.common.quantities import DURATION_S, counted
from services.views.endpoints import ServiceAddresses

app = command_group()

_POLL_S = 0.5


@app.command()
@with_services("rlm")
def drain(
    call: Call,
    cancel: bool = toggle("--cancel", "Start copies and deletions again."),
    timeout_s: float = quantity(
        "--timeout", DURATION_S, "Wait this long for what is active.", 600.0
    ),
) -> None:
    """Let an RLM finish copies and deletions and start none.

    For maintenance of RLM, RLMM, RSM, the store or the database. Reads are served all along, and
    the lag stays on the broker's disk. With several addresses, each RLM is drained. It
    lasts until --cancel, or until the RLM is restarted.

    \b
    Exit codes:
      1  something is active after --timeout; the RLM stays drained
    """
    with (
        call.connect(ServiceAddresses(rlm=call.address("rlm"))) as tier,
        progress(every_s=WATCHED_S) as show,
    ):
        active = _drained(tier.logs, show, cancel=cancel, timeout_s=timeout_s)
    rlms = [
        {"address": address, "drained": not cancel, **asdict(each)}
        for address, each in active.items()
    ]
    state = "starts copies and deletions" if cancel else "drained"
    rows = [(address, state, *astuple(each)) for address, each in active.items()]
    call.show({"rlms": rlms}, ("", ("address", "state", "copying", "deleting"), rows))
    if not cancel and any(_sums(active)):
        say(
            f"something is still active after {timeout_s:g} s; run the command again to wait longer"
        )
        raise typer.Exit(EXIT_PARTIAL)


def _drained(
    logs: Mapping[str, RemoteLogManager],
    show: Callable[[str], None],
    *,
    cancel: bool,
    timeout_s: float,
) -> dict[str, ActivePasses]:
    """Drain each RLM and wait for all of them, or cancel that; return what is still active."""
    ends_s = time.monotonic() + timeout_s
    while True:
        active = _drain_each(logs, cancel=cancel)
        copies, deletions = _sums(active)
        if cancel or not (copies or deletions) or time.monotonic() >= ends_s:
            return active
        show(f"{counted(copies, 'partition')} copying, {deletions:,} deleting; waiting")
        time.sleep(_POLL_S)


def _sums(active: Mapping[str, ActivePasses]) -> tuple[int, int]:
    """Return how many copies and deletions are active at all RLMs."""
    every = active.values()
    return sum(each.active_copies for each in every), sum(each.active_deletions for each in every)


def _drain_each(logs: Mapping[str, RemoteLogManager], *, cancel: bool) -> dict[str, ActivePasses]:
    """Call each RLM, also after one that fails; then raise the first error."""
    active: dict[str, ActivePasses] = {}
    failure: RemoteStorageError | None = None
    for address, each in logs.items():
        try:
            active[address] = each.drain(cancel=cancel)
        except RemoteStorageError as e:
            failure = failure or e
    if failure is not None:
        raise failure
    return active
