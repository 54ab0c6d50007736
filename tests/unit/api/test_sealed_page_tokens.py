"""Test page tokens: only the same query and page size get the sealed value back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.segment_objects import ObjectQuery
from services.api.validation import page_limit, seal, unseal

QUERY = ObjectQuery(1, 2, 3)


@given(st.binary(max_size=100))
def test_a_token_gives_back_its_body(body: bytes) -> None:
    assert unseal(QUERY, seal(QUERY, body)) == body
    assert unseal(QUERY, seal(QUERY, body), len(body)) == body


@given(st.binary(max_size=100))
def test_a_token_of_another_query_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="page_token: is of another query"):
        unseal(ObjectQuery(1, 1, 3), seal(QUERY, body))


@pytest.mark.parametrize("size", [0, 7, 9])
def test_a_body_of_another_size_is_refused_though_its_digest_is_right(size: int) -> None:
    with pytest.raises(InvalidRequestError, match="page_token: not a page token"):
        unseal(QUERY, seal(QUERY, bytes(size)), 8)


@pytest.mark.parametrize("token", ["", "A", "AAAA", "ü", "=", "A" * 40])
def test_invented_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequestError, match="page_token"):
        unseal(QUERY, token)


@pytest.mark.parametrize(("page_size", "limit"), [(0, 5), (1, 1), (9, 9), (10, 9)])
def test_a_page_has_a_default_and_a_greatest_size(page_size: int, limit: int) -> None:
    assert page_limit(page_size, 5, 9) == limit


def test_a_page_of_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="page_size: must not be negative"):
        page_limit(-1, 5, 9)
