"""Test that each parser of bytes from outside reads them or refuses them as it documents.

An input that `make fuzz` found is a file in tests/data/fuzzing/TARGET and stays a test.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.parsers.all_targets import TARGETS
from tests.harness.parsers.target import Target

FOUND = Path(__file__).parents[2] / "data" / "fuzzing"
every_parser = pytest.mark.parametrize("target", TARGETS.values(), ids=str)
INTERESTING = st.sampled_from(
    [b"", b"\0", b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"-1", b"9" * 5_000]
)


@st.composite
def mutated(draw: st.DrawFn, target: Target) -> bytes:
    """Replace, insert or remove a few parts of a valid input."""
    data = draw(st.sampled_from(target.seeds()))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        removed = draw(st.sampled_from([0, 0, 1, 2, 4, 8, len(data)]))
        added = draw(INTERESTING | st.binary(max_size=8))
        data = data[:at] + added + data[at + removed :]
    return data


@every_parser
def test_a_valid_input_is_read(target: Target) -> None:
    assert any(target.accepts(each) for each in target.seeds())


@pytest.mark.property
@every_parser
def test_any_bytes_are_read_or_refused(target: Target) -> None:
    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(st.binary(max_size=300) | mutated(target))
    def read(data: bytes) -> None:
        target.accepts(data)

    read()


FINDINGS = sorted(FOUND.glob("*/*"))


@pytest.mark.parametrize("path", FINDINGS, ids=[f"{p.parent.name}-{p.name}" for p in FINDINGS])
def test_an_input_that_was_a_finding_is_read_or_refused(path: Path) -> None:
    TARGETS[path.parent.name].accepts(path.read_bytes())
