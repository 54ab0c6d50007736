"""`python -m tests.deep.linearizability`: concurrent clients and faults for as long as you like.

With --check FILE a history that was saved is checked again.
"""

import tempfile
import time
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from tests.deep.histories.checker import check
from tests.deep.histories.history import History
from tests.deep.linearizability.campaign import Totals, run_round
from tests.deep.linearizability.deployment import running_deployment
from tests.deep.linearizability.faults import FAULTS

FAULTS_PER_ROUND = 3


def main(
    seconds: Annotated[int, typer.Option(help="How long to run.")] = 300,
    seed: Annotated[int | None, typer.Option(help="Of the first round.")] = None,
    between: Annotated[int, typer.Option(help="Operations between two faults.")] = 400,
    check_file: Annotated[
        Path | None, typer.Option("--check", help="Only check this history.")
    ] = None,
) -> None:
    """Hold RLMM against its sequential model under faults, and print what was done."""
    if check_file is not None:
        for tp, order in check(History.load(check_file)).items():
            typer.echo(f"partition {tp}: {len(order.changes)} changes in order")
        return
    first = int(time.time()) if seed is None else seed
    totals = Totals()
    with tempfile.TemporaryDirectory(prefix="sediment-histories-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL's own user looks into it
        with running_deployment(directory) as deployment:
            rounds, deadline = 0, time.monotonic() + seconds
            while time.monotonic() < deadline:
                faults = Random(first + rounds).choices(list(FAULTS), k=FAULTS_PER_ROUND)
                typer.echo(f"seed {first + rounds}: {', '.join(faults)}")
                run_round(deployment, first + rounds, faults, between, totals)
                rounds += 1
    for name, count in sorted(totals.items()):
        typer.echo(f"{count:,} {name}")


if __name__ == "__main__":
    typer.run(main)
