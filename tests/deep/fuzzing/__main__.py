"""Fuzz every RPC of every service, and every parser of bytes from outside, at length:

    python -m tests.deep.fuzzing [--seconds S] [--seed N] [--only rpcs|parsers]
        [--service NAME] [--rpc NAME] [--examples M] [--parser NAME]

RPCs get half of the time. They are called in rounds, each with another seed. Each parser gets an
equal share of the other half, at least two seconds, guided by coverage if atheris is installed.
Prints a line every five seconds and the counts at the end, and exits with 1 if an answer or a
parser did anything that it does not document. Seed and examples of a round show its finding again;
an input of a parser that was a finding is in build/fuzz/found.
"""

import argparse
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from time import monotonic

from google.protobuf.descriptor import MethodDescriptor

from services.rlmm.database import schema
from tests.deep.fuzzing.calling import METHODS
from tests.deep.fuzzing.campaign import Tally, Target, fuzz
from tests.deep.fuzzing.parser_runs import run_parser
from tests.deep.fuzzing.progress import Progress, print_line
from tests.deep.fuzzing.storage_targets import running_rlm, running_rsm
from tests.deep.fuzzing.targets import running_rlmm_target
from tests.harness.local_servers import DatabaseServer
from tests.harness.parsers.all_targets import TARGETS as PARSERS

_LEAST_S = 2


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
    findings = 0
    if arguments.only != "parsers":
        methods = [
            (service, method)
            for service, methods in METHODS.items()
            for method in methods
            if arguments.service in (None, service) and arguments.rpc in (None, method.name)
        ]
        findings += _fuzz_rpcs(methods, arguments.seed, share_s, arguments.examples)
    if arguments.only != "rpcs":
        names = [arguments.parser] if arguments.parser else list(PARSERS)
        findings += _fuzz_parsers(names, arguments.seed, share_s)
    return 1 if findings else 0


def _fuzz_rpcs(
    methods: Sequence[tuple[str, MethodDescriptor]], seed: int, seconds: float, examples: int
) -> int:
    """Call the RPCs in rounds until one does what it must not; return the number of findings."""
    tallies: dict[str, Tally] = defaultdict(Tally)
    findings, ends = 0, monotonic() + seconds
    with ExitStack() as cleanup:
        cleanup.enter_context(
            Progress(lambda: f"RPCs, seed {seed}: {_calls(tallies):,} calls of {len(tallies)} RPCs")
        )
        name = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sediment-fuzzing-"))
        directory = Path(name)
        directory.chmod(0o711)  # PostgreSQL runs as a user of its own
        postgres = cleanup.enter_context(DatabaseServer(directory / "postgres"))
        while monotonic() < ends and not findings:
            # Databases for each round: digests of small ones are quick.
            with ExitStack() as running:
                targets = _targets(running, postgres, directory / str(seed), seed)
                # In another order each time: a round may be cut short.
                for service, method in random.Random(seed).sample(methods, len(methods)):
                    if monotonic() >= ends:
                        break
                    findings += _fuzz_rpc(targets[service], method, seed, examples, tallies)
            seed += 1
    for name, tally in sorted(tallies.items()):
        print_line(f"{name}: {tally}")
    print_line(f"RPCs: {_calls(tallies):,} calls of {len(tallies)} RPCs, {findings} findings")
    return findings


def _calls(tallies: Mapping[str, Tally]) -> int:
    return sum(tally.calls for tally in list(tallies.values()))


def _targets(
    running: ExitStack, postgres: DatabaseServer, directory: Path, seed: int
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
    name = f"{method.containing_service.name}.{method.name}"
    try:
        fuzz(target, method, seed, examples, tallies[name])
        assert target.is_ready(), "the service does not serve any more"
    except Exception as e:  # noqa: BLE001 - printed, and the others go on
        notes = "\n".join(getattr(e, "__notes__", []))
        again = f"--rpc {method.name} --seed {seed} --examples {examples}"
        print_line(f"FOUND {method.name} ({again}): {type(e).__name__}: {e}\n{notes}")
        return True
    return False


def _fuzz_parsers(names: Sequence[str], seed: int, seconds: float) -> int:
    """Fuzz each parser in a process of its own; return the number of findings."""
    if find_spec("atheris") is None:
        print_line(
            "atheris is not installed (it has wheels for Linux on x86_64): parsers are not fuzzed "
            "by coverage; `make test-unit` tries random inputs"
        )
        return 0
    each_s = max(_LEAST_S, int(seconds / len(names)))
    runs, findings = 0, 0
    for name in names:
        run = run_parser(name, seed % 2**31 or 1, each_s)
        print_line(str(run))
        if not run.is_clean:
            print_line("\n".join(run.findings) or run.failure)
        runs += run.runs
        findings += max(len(run.findings), not run.is_clean)
    print_line(f"parsers: {runs:,} runs of {len(names)} parsers, {findings} findings")
    return findings


if __name__ == "__main__":
    sys.exit(main())
