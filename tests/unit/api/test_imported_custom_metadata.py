"""The custom metadata of rows whose objects another tiered storage wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.imported_segments import (
    ImportedCustomMetadata,
    imported_custom_metadata,
    is_imported,
    read_imported,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import indexes_size_of
from services.rsm.layout import CustomMetadata

_OWN = CustomMetadata(7, "00c0ffee00c0ffee", 10, dict.fromkeys(IndexType, 1), bytes(16))


@given(st.integers(1, 2**16 - 1), st.none() | st.binary(max_size=200))
def test_original_bytes_come_back_as_they_were(location_id: int, original: bytes | None) -> None:
    made = imported_custom_metadata(location_id, original)

    assert is_imported(made)
    assert read_imported(made) == ImportedCustomMetadata(location_id, original)
    assert made == imported_custom_metadata(location_id, original)


def test_form_is_four_bytes_before_the_original() -> None:
    assert imported_custom_metadata(0x0102, None) == bytes([0x80, 1, 2, 0])
    assert imported_custom_metadata(0x0102, b"") == bytes([0x80, 1, 2, 1])
    assert imported_custom_metadata(0x0102, b"ab") == bytes([0x80, 1, 2, 1]) + b"ab"


@pytest.mark.parametrize("location_id", [0, -1, 2**16])
def test_location_id_out_of_range_is_refused(location_id: int) -> None:
    with pytest.raises(InvalidRequestError, match="location_id: must be 1 to 65535"):
        imported_custom_metadata(location_id, None)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\x80",
        b"\x80\x00\x01",
        b"\x80\x00\x00\x00",
        b"\x80\x00\x01\x02",
        b"\x80\x00\x01\x00more",
        b"\x03\x00\x01\x00",
    ],
)
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    with pytest.raises(InvalidRequestError, match=r"^custom_metadata: "):
        read_imported(damaged)


def test_own_custom_metadata_is_never_taken_for_an_imported_rows() -> None:
    assert not is_imported(_OWN.to_bytes())
    assert not is_imported(None)
    with pytest.raises(InvalidRequestError, match="not of version 1 to 4"):
        CustomMetadata.from_bytes(imported_custom_metadata(7, _OWN.to_bytes()))
    assert indexes_size_of(imported_custom_metadata(7, _OWN.to_bytes())) == -1
