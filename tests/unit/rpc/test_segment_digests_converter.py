"""Test the conversion of a copy's digests to messages and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.remote_storage_manager import (
    CopyDigests,
    FileDigest,
    IndexType,
    LogDigest,
    StoredManifest,
)
from services.rpc.converters.storage import (
    digests_from_proto,
    digests_to_proto,
    manifest_from_proto,
    manifest_to_proto,
)
from tests.contract.remote_storage_manager_contract import a_segment

crcs = st.integers(0, 2**32 - 1)
files = st.builds(FileDigest, st.integers(0, 2**31 - 1), crcs)


@st.composite
def logs(draw: st.DrawFn) -> LogDigest:
    chunk_bytes = draw(st.integers(1, 2**21))
    chunks = draw(st.lists(crcs, max_size=5))
    short = draw(st.integers(0, chunk_bytes - 1)) if chunks else 0
    whole = FileDigest(len(chunks) * chunk_bytes - short, draw(crcs))
    return LogDigest(whole, tuple(chunks), chunk_bytes)


@given(logs(), st.dictionaries(st.sampled_from(IndexType), files))
def test_digests_are_equal_after_conversion(
    log: LogDigest, indexes: dict[IndexType, FileDigest]
) -> None:
    digests = CopyDigests(log, indexes)
    assert digests_from_proto(digests_to_proto(digests)) == digests


def test_a_manifest_of_an_older_service_has_no_digests() -> None:
    manifest = StoredManifest(a_segment(), "0" * 16, 1, 2, 3, other_deployment_id="another")
    assert manifest_from_proto(manifest_to_proto(manifest)) == manifest


def test_log_with_a_wrong_number_of_chunks_is_refused() -> None:
    message = digests_to_proto(CopyDigests(LogDigest(FileDigest(3, 1), (1,)), {}))
    message.log.chunk_crc32c.append(7)
    with pytest.raises(InvalidRequestError, match=r"log.chunk_crc32c: must be 1, are 2"):
        digests_from_proto(message)
