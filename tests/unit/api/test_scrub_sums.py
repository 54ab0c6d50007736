"""Test the digests of a stream's parts, however the stream is cut."""

from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.operations import MAX_PARTS
from services.api.remote_storage_manager import FileDigest, LogDigest
from services.workflows.scrub import ScrubPlan
from services.workflows.scrub_copy import sums_of

sizes = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def digest(content: bytes) -> FileDigest:
    return FileDigest(len(content), crc32c(content))


@given(sizes, st.lists(st.integers(0, 30), max_size=8), st.randoms(use_true_random=False))
def test_each_part_has_its_own_bytes_however_they_come(
    parts: list[int], cuts: list[int], random: Random
) -> None:
    content = random.randbytes(sum(parts))
    pieces, rest = [], content
    for length in cuts:
        pieces.append(rest[:length])
        rest = rest[length:]
    starts = [sum(parts[:number]) for number in range(len(parts))]
    assert sums_of(iter([*pieces, rest]), parts) == [
        digest(content[start : start + size]) for start, size in zip(starts, parts, strict=True)
    ]


def test_missing_parts_have_no_sum_and_extra_bytes_count_to_the_last() -> None:
    assert sums_of(iter([b"abc"]), [2, 2]) == [digest(b"ab"), digest(b"c")]
    assert sums_of(iter([b"ab"]), [2, 2]) == [digest(b"ab"), digest(b"")]
    assert sums_of(iter([b"abcd", b"ef"]), [2, 2]) == [digest(b"ab"), digest(b"cdef")]
    assert sums_of(iter([b"abc"]), [0]) == [digest(b"abc")]
    assert sums_of(iter([]), [0]) == [digest(b"")]


@pytest.mark.parametrize(
    ("size", "crcs", "chunk_bytes"), [(0, (1,), 10), (1, (), 10), (11, (1,), 10), (1, (1,), 0)]
)
def test_a_log_has_a_digest_for_each_chunk(
    size: int, crcs: tuple[int, ...], chunk_bytes: int
) -> None:
    with pytest.raises(InvalidRequestError, match="chunk"):
        LogDigest(FileDigest(size, 0), crcs, chunk_bytes)


@pytest.mark.parametrize(("part", "parts"), [(0, 1), (2, 1), (1, 0), (1, MAX_PARTS + 1), (-1, 3)])
def test_a_part_is_one_of_so_many(part: int, parts: int) -> None:
    with pytest.raises(InvalidRequestError, match="must be 1 to"):
        ScrubPlan("run", part, parts)
