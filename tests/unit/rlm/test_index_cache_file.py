"""What is taken for a file of the index cache: what was written, whole, under its own name."""

from uuid import UUID

import pytest

from services.api.remote_storage_manager import IndexType
from services.rlm.fetch.index_files import (
    HEADER_BYTES,
    DamagedFileError,
    check_index_file,
    header_of,
    index_bytes,
    is_name,
    name_of,
    run_of_unfinished,
    unfinished_name,
)

SEGMENT, OTHER = UUID(int=405), UUID(int=406)
NAME = name_of(SEGMENT, IndexType.OFFSET)
INDEX = bytes(range(64))


def content_of(name: str, index: bytes) -> bytes:
    return header_of(name, index) + index


def check(name: str, content: bytes) -> None:
    check_index_file(name, content[:HEADER_BYTES], content[HEADER_BYTES:])


@pytest.mark.parametrize("index", [INDEX, b""])
def test_what_was_written_is_taken(index: bytes) -> None:
    content = content_of(NAME, index)
    check(NAME, content)
    assert index_bytes(content[:HEADER_BYTES]) == len(index)


def test_no_byte_may_be_another() -> None:
    content = content_of(NAME, INDEX)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1
        with pytest.raises(DamagedFileError):
            check(NAME, bytes(damaged))


def test_nothing_may_be_cut_off_or_added() -> None:
    content = content_of(NAME, INDEX)
    for size in range(len(content)):
        with pytest.raises(DamagedFileError):
            check(NAME, content[:size])
    with pytest.raises(DamagedFileError):
        check(NAME, content + b"\0")


@pytest.mark.parametrize(
    "other", [name_of(OTHER, IndexType.OFFSET), name_of(SEGMENT, IndexType.TIMESTAMP)]
)
def test_a_file_under_another_name_is_another_file(other: str) -> None:
    with pytest.raises(DamagedFileError, match="CRC"):
        check(other, content_of(NAME, INDEX))


def test_a_file_of_zeroes_is_none() -> None:
    with pytest.raises(DamagedFileError, match="another format"):
        check(NAME, bytes(len(content_of(NAME, INDEX))))


@pytest.mark.parametrize(
    "name", ["00000000000000000405.index", f"{NAME}.1", f"x{NAME}", f"{SEGMENT}.offset", "filler"]
)
def test_names_of_others(name: str) -> None:
    assert not is_name(name)
    assert run_of_unfinished(name) is None


def test_names_of_its_own() -> None:
    assert all(is_name(name_of(SEGMENT, kind)) for kind in IndexType)
    unfinished = unfinished_name(NAME, "0123abcd")
    assert not is_name(unfinished)
    assert run_of_unfinished(unfinished) == "0123abcd"
