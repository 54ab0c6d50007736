"""Try a deployment with one small segment: `sediment selftest`."""

from dataclasses import asdict

import typer

from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlmm,
    Rsm,
    command_group,
    connected_rlmm,
    connected_rsm,
)
from services.cli.output import EXIT_PARTIAL, Format, print_json, print_table
from services.workflows.selftest import TOPIC, Step, run_selftest

app = command_group()


@app.command()
def selftest(
    rsm: Rsm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Copy a small segment, look it up, read it back and delete it.

    Its topic is sediment-selftest, with an id of its own each time. Needs the
    roles shipper, reader and deleter for that topic.

    \b
    Exit codes:
      0  every step succeeded
      1  a step failed; it is named
      3  a service could not be reached before the first step
    """
    with connected_rlmm(rlmm, data_dir) as metadata, connected_rsm(rsm, data_dir) as store:
        steps = run_selftest(metadata, store)
    has_failed = any(step.error is not None for step in steps)
    if output is Format.JSON:
        print_json({"passed": not has_failed, "topic": TOPIC, "steps": [*map(asdict, steps)]})
    else:
        print_table("Self-test", ("step", "outcome", "time"), map(_row, steps))
    raise typer.Exit(EXIT_PARTIAL if has_failed else 0)


def _row(step: Step) -> tuple[str, str, str]:
    return step.name, step.error or "ok", f"{step.took_ms:.0f} ms"
