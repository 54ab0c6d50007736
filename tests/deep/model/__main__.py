"""Compare RLMM with its model, at length:

    python -m tests.deep.model [--seed N] [--operations M]

Prints what was done and reached. Exits with 1 if RLMM and the model differ, with 2 if fewer
than 95 % of the cells were reached by a run that is long enough. The seed that a failing test has
printed shows the failure again.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path
from time import monotonic

from services.rlmm.database import schema
from tests.deep.fuzzing.progress import Progress, print_line
from tests.deep.model.runs import GRPC_SHARE, DifferenceError, Tally, run
from tests.deep.model.subjects import subjects
from tests.harness.local_servers import DatabaseServer

ALL_OPERATIONS = 100_000
LONG_ENOUGH = 20_000
LEAST_REACHED = 0.95
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
"""Nothing is killed here, and no data is needed later."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deep.model")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--operations", type=int, default=ALL_OPERATIONS)
    arguments = parser.parse_args()
    print_line(f"first seed {arguments.seed}; one sequence of {GRPC_SHARE} goes through gRPC")
    tally, began = Tally(), monotonic()
    try:
        with Progress(lambda: f"  {tally.operations:,} operations, {monotonic() - began:.0f} s"):
            _run(arguments.seed, arguments.operations, tally)
    except DifferenceError as e:
        print_line(str(e))
        return 1
    print_line(str(tally))
    is_short = tally.operations < LONG_ENOUGH
    return 0 if is_short or tally.reached_share >= LEAST_REACHED else 2


def _run(seed: int, operations: int, tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="sediment-model-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL runs as a user of its own
        with DatabaseServer(directory / "postgres", NOT_DURABLE) as postgres:
            url = postgres.create_database("model")
            schema.upgrade(url)
            with subjects(url) as both:
                run(seed, operations, lambda each: both[each % GRPC_SHARE == 0], tally)


if __name__ == "__main__":
    sys.exit(main())
