"""Bound requests and replies, and encode page tokens."""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self, TypeAlias
from uuid import UUID

from services.api import validation
from services.api.calls import MutationContext
from services.api.errors import CustomMetadataTooLargeError
from services.api.partitions import PartitionReport, PolledLog
from services.api.remote_log_metadata_manager import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from services.api.validation import require
from services.rlmm.database.rows import AnyRow

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""The most bytes of a page: a page is one message, and no message may be larger than 4 MiB."""
MAX_NAMES_AND_NUMBERS_BYTES = 512
MAX_LEADER_EPOCH_BYTES = 24
_NUMBER = struct.Struct(">q")
_BODY_BYTES = _NUMBER.size + 16


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of requests.

    Attributes:
        custom_metadata_bytes: the longest custom metadata of a segment.
        leader_epochs: the most of one segment or report. A segment has one for each change of
            leader while it was written: few. The most take 240 KB of a message of 4 MiB.
    """

    custom_metadata_bytes: int = 128
    leader_epochs: int = 10_000

    def check_update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        self._check_custom_metadata("update.", update.custom_metadata)

    def check_replacement(self, custom_metadata: bytes) -> None:
        self._check_custom_metadata("new_", custom_metadata)

    def check_segment(self, metadata: RemoteLogSegmentMetadata, path: str = "metadata") -> None:
        self._check_custom_metadata(f"{path}.", metadata.custom_metadata)
        count, most = len(metadata.segment_leader_epochs), self.leader_epochs
        require(count <= most, f"{path}.segment_leader_epochs", f"at most {most}, has {count}")

    def check_addition(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Check a segment whose copy begins."""
        is_start = metadata.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        require(
            is_start, "metadata.state", f"must be COPY_SEGMENT_STARTED, is {metadata.state.value}"
        )
        self.check_segment(metadata)

    def check_report(self, report: PartitionReport | PolledLog) -> None:
        count, most = len(report.lineage.entries), self.leader_epochs
        require(count <= most, "leader_epochs", f"at most {most}, has {count}")

    def _check_custom_metadata(self, path: str, custom_metadata: bytes | None) -> None:
        length = len(custom_metadata or b"")
        if length > self.custom_metadata_bytes:
            raise CustomMetadataTooLargeError(
                f"{path}custom_metadata: at most {self.custom_metadata_bytes} bytes, has {length}"
            )


def check_storable(context: MutationContext) -> None:
    """Refuse a context with a text that PostgreSQL cannot store."""
    for field in ("request_id", "reason", "rule_detail", "plan_id"):
        check_text(getattr(context, field) or "", f"context.{field}")


def check_text(text: str, field: str) -> None:
    """Refuse NUL characters, which PostgreSQL cannot store in text."""
    require("\0" not in text, field, "must not contain NUL")


def fitting(sizes_bytes: Iterable[int]) -> int:
    """Return how many rows of these sizes fit into one message, at least one if there are any."""
    sums = list(accumulate(sizes_bytes))
    return max(bisect_right(sums, MAX_PAGE_BYTES), min(len(sums), 1))


SEGMENT_BYTES = f"""{MAX_NAMES_AND_NUMBERS_BYTES} + coalesce(octet_length(s.custom_metadata), 0)
        + {MAX_LEADER_EPOCH_BYTES} * cardinality(s.leader_epochs)"""
"""SQL for segment_size_bytes, of `segments AS s`: rows that do not fit need not be read."""


def segment_size_bytes(row: AnyRow) -> int:
    """Return an upper bound of a segment's bytes in a message."""
    of_epochs = MAX_LEADER_EPOCH_BYTES * len(row.leader_epochs)
    return MAX_NAMES_AND_NUMBERS_BYTES + len(row.custom_metadata or b"") + of_epochs


Position: TypeAlias = tuple[int, UUID]
Query: TypeAlias = tuple[object, ...]
"""The value to which page tokens are bound: equal for equal queries."""


def encode(query: Query, position: Position) -> str:
    """Encode a page token for the rows after `position` in `query`."""
    number, uuid = position
    return validation.seal(query, _NUMBER.pack(number) + uuid.bytes)


def decode(query: Query, token: str) -> Position | None:
    """Decode the position in a token of `encode`; None for "", the beginning.

    Raises:
        InvalidRequestError: the token is malformed or belongs to another query.
    """
    if not token:
        return None
    body = validation.unseal(query, token, _BODY_BYTES)
    (number,) = _NUMBER.unpack(body[: _NUMBER.size])
    return number, UUID(bytes=body[_NUMBER.size :])


@dataclass(frozen=True, slots=True)
class Page:
    """The page of a list that a client requests.

    Attributes:
        limit: the most rows. A statement reads one more, which shows whether there is a next page.
        after: the position behind which the page begins; None for the first page.
    """

    query: Query
    limit: int
    after: Position | None

    @classmethod
    def of(cls, query: Query, page_size: int, page_token: str) -> Self:
        """Check what the client sent.

        Raises:
            InvalidRequestError: the token is malformed or belongs to another query.
        """
        limit = validation.page_limit(page_size, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        return cls(query, limit, decode(query, page_token))

    def cut(
        self,
        rows: Sequence[AnyRow],
        size_bytes: Callable[[AnyRow], int],
        position: Callable[[AnyRow], Position],
    ) -> tuple[Sequence[AnyRow], str]:
        """Return the rows that the limit allows and one message can have, and the next token.

        Args:
            size_bytes: an upper bound of a row's bytes in the message.
        """
        count = fitting(map(size_bytes, rows[: self.limit]))
        token = encode(self.query, position(rows[count - 1])) if count < len(rows) else ""
        return rows[:count], token
