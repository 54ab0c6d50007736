"""Every RPC of RLMM fuzzed at length:

    python -m tests.deep.fuzzing [--seed N] [--seconds S] [--rpc NAME] [--examples M]

Goes round all RPCs until the time is over, each round with another seed; prints how the calls
ended. Exits with 1 at the first answer that is not what it should be, with the request. Seed and
examples of the round show it again.
"""

import argparse
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from time import monotonic

from services.local.postgres import EmbeddedPostgres
from services.rlmm import schema
from tests.deep.fuzzing.calling import METHODS
from tests.deep.fuzzing.campaign import Tally, fuzz
from tests.deep.fuzzing.targets import running_target


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deep.fuzzing")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--rpc", choices=[method.name for method in METHODS])
    arguments = parser.parse_args()
    methods = [method for method in METHODS if arguments.rpc in (None, method.name)]
    tallies: dict[str, Tally] = defaultdict(Tally)
    failed, ends = set[str](), monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory(prefix="sediment-fuzzing-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL runs as a user of its own
        with EmbeddedPostgres(directory / "postgres") as postgres:
            seed = arguments.seed
            while monotonic() < ends and not failed:
                _tell(f"seed {seed}")
                # A database for each round: digests of a small one are quick.
                url = postgres.create_database(f"round_{seed}")
                schema.upgrade(url)
                with running_target(url, directory / "rlmm") as target:
                    for method in methods:
                        try:
                            tally = fuzz(target, method, seed, arguments.examples)
                            tallies[method.name].codes.update(tally.codes)
                        except Exception as e:  # noqa: BLE001 - told, and the others go on
                            failed.add(method.name)
                            notes = "\n".join(getattr(e, "__notes__", []))
                            _tell(f"{method.name}: {type(e).__name__}: {e}\n{notes}")
                seed += 1
    for name, tally in tallies.items():
        _tell(f"{name}: {tally}")
    return 1 if failed else 0


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
