"""RLMM against the reference model, at length:

    python -m tests.deep.model [--seed N] [--operations M]

Prints what was done and reached. Exits with 1 where RLMM and the model differ, with 2 where fewer
than 95 % of the cells were reached by a run that is long enough. The seed that a failing test has
printed shows the failure again.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from time import monotonic

from services.local.postgres import EmbeddedPostgres
from services.rlmm.database import schema
from tests.deep.model.comparison import Tally
from tests.deep.model.runs import GRPC_SHARE, DifferenceError, reached_share, report, run
from tests.deep.model.subjects import subjects

ALL_OPERATIONS = 100_000
LONG_ENOUGH = 20_000
LEAST_REACHED = 0.95
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
"""Nothing is killed here, and nothing is kept."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deep.model")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--operations", type=int, default=ALL_OPERATIONS)
    arguments = parser.parse_args()
    _tell(f"first seed {arguments.seed}; one sequence of {GRPC_SHARE} goes through gRPC")
    began = monotonic()
    try:
        tally = _run(arguments.seed, arguments.operations, began)
    except DifferenceError as e:
        _tell(str(e))
        return 1
    for line in report(tally):
        _tell(line)
    seconds = monotonic() - began
    _tell(f"{seconds:.0f} s, {tally.operations / seconds:.0f} operations/s")
    is_short = tally.operations < LONG_ENOUGH
    return 0 if is_short or reached_share(tally) >= LEAST_REACHED else 2


def _run(seed: int, operations: int, began: float) -> Tally:
    with tempfile.TemporaryDirectory(prefix="sediment-model-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL runs as a user of its own
        with EmbeddedPostgres(directory / "postgres", NOT_DURABLE) as postgres:
            url = postgres.create_database("model")
            schema.upgrade(url)
            with subjects(url) as (in_process, over_grpc):

                def progress(tally: Tally) -> None:
                    if tally.sequences % 50 == 0:
                        _tell(f"  {tally.operations:,} operations, {monotonic() - began:.0f} s")

                return run(
                    seed,
                    operations,
                    lambda each: in_process if each % GRPC_SHARE else over_grpc,
                    progress,
                )


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
