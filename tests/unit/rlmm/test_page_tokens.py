"""Test page tokens: only the same query gets the encoded position back."""

import base64
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.remote_log_metadata_manager import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from services.rlmm.database.limits import Page, decode, encode

QUERY = ("segments", "a", None)
POSITION = (7, UUID(int=9))


@given(st.integers(min_value=0, max_value=2**63 - 1), st.uuids())
def test_a_token_gives_back_its_position(number: int, uuid: UUID) -> None:
    assert decode(QUERY, encode(QUERY, (number, uuid))) == (number, uuid)


def test_no_token_is_the_beginning() -> None:
    assert decode(QUERY, "") is None


@pytest.mark.parametrize("other", [("segments", "b", None), ("segments", "a", 0), ("partitions",)])
def test_a_token_of_another_query_is_refused(other: tuple[object, ...]) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        decode(other, encode(QUERY, POSITION))


@given(st.integers(min_value=0, max_value=31), st.integers(min_value=1, max_value=255))
def test_a_token_with_any_byte_changed_is_refused(place: int, change: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(encode(QUERY, POSITION)))
    raw[place] ^= change
    with pytest.raises(InvalidRequestError, match="page_token"):
        decode(QUERY, base64.urlsafe_b64encode(raw).decode())


@given(st.text(min_size=1, max_size=60))
def test_invented_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        decode(QUERY, token)


@pytest.mark.parametrize(
    ("page_size", "limit"),
    [(0, DEFAULT_PAGE_SIZE), (1, 1), (MAX_PAGE_SIZE, MAX_PAGE_SIZE), (2**31, MAX_PAGE_SIZE)],
)
def test_a_page_has_a_default_and_a_greatest_size(page_size: int, limit: int) -> None:
    assert Page.of(QUERY, page_size, "").limit == limit
