"""Fuzz every RPC of every service, and every parser of bytes from outside, at length:

    python -m tests.deep.fuzzing [--seconds S] [--seed N] [--only rpcs|parsers]
        [--service NAME] [--rpc NAME] [--examples M] [--parser NAME]

RPCs get half of the time. They are called in rounds, each with another seed. Each parser gets an
equal share of the other half, guided by coverage if atheris is installed. Prints what was done, and
exits with 1 if an answer or a parser did anything that it does not document. Seed and examples of a
round show its finding again; an input of a parser that was a finding is in build/fuzz/found.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from google.protobuf.descriptor import MethodDescriptor

from services.local.postgres import EmbeddedPostgres
from services.rlmm import schema
from tests.deep.fuzzing.calling import METHODS
from tests.deep.fuzzing.campaign import Tally, Target, fuzz
from tests.deep.fuzzing.storage_targets import running_rlm, running_rsm
from tests.deep.fuzzing.targets import running_rlmm_target
from tests.harness.parsers.all_targets import TARGETS as PARSERS

_LEAST_S = 2
_DONE = re.compile(r"^#(\d+)\s+DONE\s+cov: (\d+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deep.fuzzing")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--only", choices=["rpcs", "parsers"])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--service", choices=sorted(METHODS))
    parser.add_argument("--rpc")
    parser.add_argument("--parser", choices=sorted(PARSERS))
    arguments = parser.parse_args()
    share_s = arguments.seconds if arguments.only else arguments.seconds / 2
    failed = False
    if arguments.only != "parsers":
        methods = [
            (service, method)
            for service, methods in METHODS.items()
            for method in methods
            if arguments.service in (None, service) and arguments.rpc in (None, method.name)
        ]
        failed |= _fuzz_rpcs(methods, arguments.seed, share_s, arguments.examples)
    if arguments.only != "rpcs":
        names = [arguments.parser] if arguments.parser else list(PARSERS)
        failed |= _fuzz_parsers(names, arguments.seed, share_s)
    return 1 if failed else 0


def _fuzz_rpcs(
    methods: Sequence[tuple[str, MethodDescriptor]], seed: int, seconds: float, examples: int
) -> bool:
    """Call the RPCs in rounds; return whether one did what it must not."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    failed, ends = False, monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="sediment-fuzzing-") as name:
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL runs as a user of its own
        with EmbeddedPostgres(directory / "postgres") as postgres:
            while monotonic() < ends and not failed:
                _print(f"seed {seed}")
                # Databases for each round: digests of small ones are quick.
                with ExitStack() as running:
                    targets = _targets(running, postgres, directory / str(seed), seed)
                    # In another order each time: a round may be cut short.
                    for service, method in random.Random(seed).sample(methods, len(methods)):
                        if monotonic() >= ends:
                            break
                        failed |= _fuzz_rpc(targets[service], method, seed, examples, tallies)
                seed += 1
    for name, tally in tallies.items():
        _print(f"{name}: {tally}")
    return failed


def _targets(
    running: ExitStack, postgres: EmbeddedPostgres, directory: Path, seed: int
) -> dict[str, Target]:
    urls = [postgres.create_database(f"{service}_{seed}") for service in ("rlmm", "rlm")]
    for url in urls:
        schema.upgrade(url)
    return {
        "rlmm": running.enter_context(running_rlmm_target(urls[0], directory / "rlmm")),
        "rsm": running.enter_context(running_rsm(directory / "rsm")),
        "rlm": running.enter_context(running_rlm(urls[1], directory / "rlm")),
    }


def _fuzz_rpc(
    target: Target,
    method: MethodDescriptor,
    seed: int,
    examples: int,
    tallies: dict[str, Tally],
) -> bool:
    try:
        tally = fuzz(target, method, seed, examples)
        tallies[method.name].codes.update(tally.codes)
        assert target.is_ready(), "the service does not serve any more"
    except Exception as e:  # noqa: BLE001 - printed, and the others go on
        notes = "\n".join(getattr(e, "__notes__", []))
        _print(f"{method.name}: {type(e).__name__}: {e}\n{notes}")
        return True
    return False


def _fuzz_parsers(names: Sequence[str], seed: int, seconds: float) -> bool:
    """Fuzz each parser in a process of its own; return whether one did what it must not."""
    if find_spec("atheris") is None:
        _print(
            "atheris is not installed (it has wheels for Linux on x86_64): parsers are not fuzzed "
            "by coverage; `make test-deep` tries random inputs"
        )
        return False
    each_s = max(_LEAST_S, int(seconds / len(names)))
    failed = False
    for name in names:
        command = [sys.executable, "-m", "tests.deep.fuzzing.guided", name]
        done = subprocess.run(
            [*command, "--seconds", str(each_s), "--seed", str(seed % 2**31 or 1)],
            capture_output=True,
            text=True,
            check=False,
        )
        figures = _DONE.search(done.stderr)
        runs, edges = figures.groups() if figures else ("?", "?")
        found = [line for line in done.stderr.splitlines() if line.startswith("FOUND")]
        _print(f"{name}: {runs} runs, {edges} edges, {len(found)} findings")
        if found or done.returncode:
            failed = True
            _print("\n".join(found) or done.stderr[-2_000:])
    return failed


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
