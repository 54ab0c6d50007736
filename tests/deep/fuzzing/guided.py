"""Fuzz one parser, guided by coverage, in a process of its own:

    python -m tests.deep.fuzzing.guided TARGET --seconds S --seed N

Begins with the target's seeds and the inputs in tests/data/fuzzing/TARGET. Keeps inputs that reach
new code in build/fuzz/corpus/TARGET, so that the next run goes on from there. Writes each input
that raised an undocumented error to build/fuzz/found/TARGET, one for each line of code that raised,
and exits with 1 if there is one.
"""

import argparse
import logging
import sys
import traceback
from hashlib import sha256
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["services"]):
    from tests.harness.parsers.all_targets import TARGETS
    from tests.harness.parsers.target import LONGEST_INPUT_BYTES, Target

_ROOT = Path(__file__).parents[3]
BUILD = _ROOT / "build" / "fuzz"
_EARLIER_FINDINGS = _ROOT / "tests" / "data" / "fuzzing"
_LONGEST_INPUT_S = 30
_MOST_MEMORY_MIB = 2_048


def _dictionary() -> Path:
    """Write the words that mutations insert: numbers at the bounds, and what the formats use."""
    numbers = [b"-1", b"0", b"2147483648", b"9223372036854775808", b"9" * 5_000]
    binary = [b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 8, b"\x7f" + b"\xff" * 7, bytes(8)]
    words = [b"true", b"null", b"{", b"[", b"<a>", b"</a>", b"&a;", b"\n", b"=", b": "]
    lines = ["".join(f"\\x{byte:02x}" for byte in word) for word in (*numbers, *binary, *words)]
    path = BUILD / "words.dict"
    path.write_text("".join(f'"{line}"\n' for line in lines))
    return path


class Findings:
    """The inputs that a parser neither reads nor refuses as it documents."""

    def __init__(self, target: Target, directory: Path) -> None:
        self._target = target
        self._directory = directory
        self._seen: set[str] = set()

    def try_input(self, data: bytes) -> None:
        try:
            self._target.accepts(data)
        except Exception as e:  # noqa: BLE001 - a finding: kept, and the fuzzing goes on
            self._keep(data, e)

    def _keep(self, data: bytes, error: Exception) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno} {type(error).__name__}"
        if place in self._seen:
            return
        self._seen.add(place)
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / sha256(data).hexdigest()[:16]
        path.write_bytes(data)
        sys.stderr.write(f"FOUND {path}: {place}: {str(error)[:300]}\n")
        traceback.print_exception(error, limit=-6)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.deep.fuzzing.guided")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    target = TARGETS[arguments.target]
    corpus = BUILD / "corpus" / target.name
    corpus.mkdir(parents=True, exist_ok=True)
    earlier = (path.read_bytes() for path in (_EARLIER_FINDINGS / target.name).glob("*"))
    for seed in (*target.seeds(), *earlier):
        (corpus / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    found = BUILD / "found" / target.name
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-seed={arguments.seed}",
        f"-max_len={LONGEST_INPUT_BYTES}",
        f"-timeout={_LONGEST_INPUT_S}",
        f"-rss_limit_mb={_MOST_MEMORY_MIB}",
        f"-artifact_prefix={found}/",
        "-use_value_profile=1",
        "-len_control=0",
        f"-dict={_dictionary()}",
        "-print_final_stats=1",
        str(corpus),
    ]
    found.mkdir(parents=True, exist_ok=True)
    logging.disable()  # A line for each refused input would take most of the time.
    atheris.Setup([sys.argv[0], *options], Findings(target, found).try_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
