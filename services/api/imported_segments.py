"""Make and read the custom metadata of a row whose objects another tiered storage wrote."""

import struct
from dataclasses import dataclass

from services.api.validation import require

IMPORTED_VERSION = 0x80
"""No form of RSM's own custom metadata begins with this byte."""
_FORM = struct.Struct(">BHB")
_FIELD = "custom_metadata"
_MAX_LOCATION_ID = 2**16 - 1


@dataclass(frozen=True, slots=True)
class ImportedCustomMetadata:
    """What an imported row's custom metadata consists of.

    Attributes:
        location_id: the number of the location that has the objects.
        original: the bytes that the other storage's plugin had returned; None if it returned none.
    """

    location_id: int
    original: bytes | None


def imported_custom_metadata(location_id: int, original: bytes | None) -> bytes:
    """Return the custom metadata of an imported row, the same for the same arguments.

    It is 4 bytes longer than `original`: version, location id, whether original bytes follow.
    """
    in_range = 0 < location_id <= _MAX_LOCATION_ID
    require(in_range, "location_id", f"must be 1 to {_MAX_LOCATION_ID}")
    header = _FORM.pack(IMPORTED_VERSION, location_id, original is not None)
    return header + (original or b"")


def is_imported(custom_metadata: bytes | None) -> bool:
    """Return whether a row's custom metadata was made by imported_custom_metadata."""
    return custom_metadata is not None and custom_metadata[:1] == bytes([IMPORTED_VERSION])


def read_imported(custom_metadata: bytes) -> ImportedCustomMetadata:
    """Read what imported_custom_metadata made.

    Raises:
        InvalidRequestError: it is of another version, or malformed.
    """
    size = _FORM.size
    require(is_imported(custom_metadata), _FIELD, "is not that of an imported segment")
    require(len(custom_metadata) >= size, _FIELD, f"must have {size} bytes or more")
    _, location_id, has_original = _FORM.unpack_from(custom_metadata)
    original = custom_metadata[size:] if has_original else None
    is_canonical = location_id > 0 and custom_metadata == imported_custom_metadata(
        location_id, original
    )
    require(is_canonical, _FIELD, "is malformed")
    return ImportedCustomMetadata(location_id, original)
