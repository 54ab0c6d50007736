"""Try a deployment with one small segment: `sediment selftest`."""

from dataclasses import asdict

import typer

from services.cli.connections import Call, command_group, with_services
from services.cli.output import EXIT_PARTIAL
from services.workflows.selftest import TOPIC, Step, run_selftest

app = command_group()


@app.command()
@with_services("rsm", "rlmm")
def selftest(call: Call) -> None:
    """Copy a small segment, look it up, read it back and delete it.

    Its topic is sediment-selftest, with an id of its own each time. Needs the
    roles shipper, reader and deleter for that topic.

    \b
    Exit codes:
      1  a step failed; it is named
    """
    with call.rlmm_client() as metadata, call.rsm_clients() as (store, _):
        steps = run_selftest(metadata, store)
    has_failed = any(step.error is not None for step in steps)
    call.show(
        {"passed": not has_failed, "topic": TOPIC, "steps": [*map(asdict, steps)]},
        ("Self-test", ("step", "outcome", "time"), map(_row, steps)),
    )
    raise typer.Exit(EXIT_PARTIAL if has_failed else 0)


def _row(step: Step) -> tuple[str, str, str]:
    return step.name, step.error or "ok", f"{step.took_ms:.0f} ms"
