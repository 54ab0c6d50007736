"""Define the ids of partitions and segments, and Kafka's text form of their UUIDs."""

import base64
import re
from dataclasses import dataclass
from uuid import UUID, uuid4

from services.api.errors import InvalidRequestError
from services.api.validation import require, require_int32

ZERO_UUID = UUID(int=0)
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TAIL_VERSION = 8
_VERSION_AT_BIT = 76
# The last character has two bits of the UUID, and four that are zero.
_KAFKA_UUID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]")


@dataclass(frozen=True, slots=True, order=True)
class TopicIdPartition:
    """The id of a partition: topic id, topic and number (Kafka: TopicIdPartition).

    A topic that is created again under its name has another id. `topic` follows Kafka's rule for
    legal names; the id must not be all zeroes, which Kafka reserves.
    """

    topic_id: UUID
    topic: str
    partition: int

    def __post_init__(self) -> None:
        require(self.topic_id != ZERO_UUID, "topic_id", "must not be the zero id")
        legal = _LEGAL_TOPIC.fullmatch(self.topic) is not None and self.topic not in (".", "..")
        require(legal, "topic", f"not a legal Kafka topic name: {self.topic[:260]!r}")
        require_int32(self.partition, "partition")

    def __str__(self) -> str:
        return f"{uuid_to_text(self.topic_id)}:{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True, order=True)
class RemoteLogSegmentId:
    """The id of one attempt to copy a segment (Kafka: RemoteLogSegmentId).

    Each retry has a new `id`.
    """

    topic_id_partition: TopicIdPartition
    id: UUID

    def __post_init__(self) -> None:
        require(self.id != ZERO_UUID, "id", "must not be the zero id")

    def __str__(self) -> str:
        return f"{self.topic_id_partition}/{uuid_to_text(self.id)}"


def random_uuid() -> UUID:
    """Make a random UUID of which the text form does not start with a dash.

    A command would parse such a text as an option (Kafka: Uuid.randomUuid).
    """
    while True:
        uuid = uuid4()
        if not uuid_to_text(uuid).startswith("-"):
            return uuid


def tail_uuid() -> UUID:
    """Make a random id for the copy of a tail: a UUID of version 8, others are of version 4."""
    others = ~(0xF << _VERSION_AT_BIT)
    return UUID(int=random_uuid().int & others | _TAIL_VERSION << _VERSION_AT_BIT)


def is_tail_uuid(uuid: UUID) -> bool:
    """Return whether the id of a segment says that it is a tail (services.api.superseded)."""
    return uuid.version == _TAIL_VERSION


def uuid_to_text(uuid: UUID) -> str:
    """Write a UUID in Kafka's form: 22 characters of URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(uuid.bytes)[:22].decode("ascii")


def uuid_from_text(text: str, field: str) -> UUID:
    """Read Kafka's 22-character form or the usual form with hyphens.

    A 22-character text with bits in its last character that no UUID has is refused, so that an id
    has only one spelling in this form.

    Raises:
        InvalidRequestError: if the text has neither form; names `field`.
    """
    if _KAFKA_UUID.fullmatch(text):
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    if len(text) == 36:
        try:
            return UUID(text)
        except ValueError:
            pass
    raise InvalidRequestError(
        f"{field}: must be 22 characters of URL-safe base64 or a UUID, is {text[:64]!r}"
    )
