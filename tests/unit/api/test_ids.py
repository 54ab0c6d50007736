"""Test names, and Kafka's text form of UUIDs."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition, random_uuid, uuid_from_text, uuid_to_text

KNOWN = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")


@given(st.uuids())
def test_kafkas_form_and_the_hyphenated_form_read_as_the_same_id(uuid: UUID) -> None:
    assert uuid_from_text(uuid_to_text(uuid), "id") == uuid
    assert uuid_from_text(str(uuid), "id") == uuid


def test_kafkas_form_is_url_safe_base64_without_padding() -> None:
    assert uuid_to_text(KNOWN) == "AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    "text",
    ["", "AAECAwQFBgcICQoLDA0OD", "AAECAwQFBgcICQoLDA0ODx", "AAECAwQFBgcICQoLDA0OD=", "x" * 36],
)
def test_any_other_text_is_refused_by_field(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^topic_id"):
        uuid_from_text(text, "topic_id")


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a b", "é", "x" * 250])
def test_illegal_topic_names_are_refused(topic: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^topic:"):
        TopicIdPartition(KNOWN, topic, 0)


def test_the_zero_topic_id_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"^topic_id"):
        TopicIdPartition(UUID(int=0), "orders", 0)


def test_random_uuids_start_without_a_dash() -> None:
    # One of 64 would start with a dash.
    assert not any(uuid_to_text(random_uuid()).startswith("-") for _ in range(2_000))
