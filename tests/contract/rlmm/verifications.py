"""Test verifications: the parts of the last runs of each topic, summed up and listed in pages."""

from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.operations import (
    MAX_PARTS,
    MAX_VERIFIED_TOPICS,
    Verification,
    VerificationKind,
    VerificationRun,
    VerifiedTopic,
)
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_verifications,
)
from services.api.validation import INT64_MAX
from tests.contract.rlmm.segments import RlmmContractPart

RECONCILE, SCRUB = VerificationKind.RECONCILE, VerificationKind.SCRUB


def a_topic(rlmm: RemoteLogMetadataManager, name: str = "") -> UUID:
    """Make a topic known that no other test has."""
    topic_id = uuid4()
    tp = TopicIdPartition(topic_id, name or f"t{topic_id.hex}", 0)
    rlmm.on_partition_leadership_changes([PartitionLeadership(tp, 0)], [], 1)
    return topic_id


def name_of(topic_id: UUID) -> str:
    return f"t{topic_id.hex}"


def report(
    rlmm: RemoteLogMetadataManager, topic_id: UUID, part: int, parts: int, **fields: Any
) -> None:
    listed_at_ms = fields.pop("listed_at_ms", None)
    kind, run_id = fields.pop("kind", SCRUB), fields.pop("run_id", "run")
    run = VerificationRun(kind, run_id, part, parts, listed_at_ms)
    rlmm.report_verification(run, [VerifiedTopic(topic_id, **fields)])


def of_topic(rlmm: RemoteLogMetadataManager, topic_id: UUID) -> list[Verification]:
    return list(all_verifications(rlmm, name_of(topic_id)))


class Verifications(RlmmContractPart):
    def test_a_verification_is_the_sum_of_its_parts(self, rlmm: RemoteLogMetadataManager) -> None:
        topic_id = a_topic(rlmm)
        counts = {"segments": 4, "verified_segments": 3, "verified_bytes": 300}
        report(rlmm, topic_id, 1, 2, run_id="run-1", failed_segments=1, **counts)
        [half] = of_topic(rlmm, topic_id)
        assert (half.topic, half.kind, half.verified_parts, half.parts, half.run_id) == (
            *(name_of(topic_id), SCRUB),
            *(1, 2, "run-1"),
        )
        assert half.verified == VerifiedTopic(topic_id, 4, 3, 300, 1)
        assert half.ended_ms == half.last_ended_ms > 0
        report(rlmm, topic_id, 2, 2, run_id="run-2", **counts)
        [whole] = of_topic(rlmm, topic_id)
        assert (whole.verified_parts, whole.parts, whole.run_id) == (2, 2, "run-2")
        assert whole.verified == VerifiedTopic(topic_id, 8, 6, 600, 1)
        assert half.ended_ms == whole.ended_ms <= whole.last_ended_ms

    def test_a_part_that_is_verified_again_is_replaced(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, run_id="run-1", segments=9, failed_segments=2)
        [first] = of_topic(rlmm, topic_id)
        report(rlmm, topic_id, 1, 1, run_id="run-2", segments=5, verified_segments=5)
        [second] = of_topic(rlmm, topic_id)
        assert second.verified == VerifiedTopic(topic_id, 5, 5, 0, 0)
        assert (second.run_id, second.ended_ms >= first.ended_ms) == ("run-2", True)

    def test_a_verification_is_as_old_as_the_list_of_the_objects(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, run_id="of-a-list", listed_at_ms=7)
        [found] = of_topic(rlmm, topic_id)
        assert (found.ended_ms, found.last_ended_ms, found.run_id) == (7, 7, "of-a-list")
        report(rlmm, topic_id, 1, 1, run_id="now")
        [now] = of_topic(rlmm, topic_id)
        assert now.run_id == "now"
        # A list that is older than the latest verification takes nothing from it.
        report(rlmm, topic_id, 1, 1, run_id="of-a-list-2", listed_at_ms=8)
        assert of_topic(rlmm, topic_id) == [now]
        report(rlmm, topic_id, 1, 1, run_id="of-the-future", listed_at_ms=INT64_MAX)
        [last] = of_topic(rlmm, topic_id)
        assert last.run_id == "of-the-future"
        assert now.ended_ms <= last.ended_ms < INT64_MAX

    def test_kinds_are_apart(self, rlmm: RemoteLogMetadataManager) -> None:
        topic_id = a_topic(rlmm)
        report(rlmm, topic_id, 1, 1, segments=1)
        report(rlmm, topic_id, 1, 1, kind=RECONCILE, segments=2)
        found = [(each.kind, each.verified.segments) for each in of_topic(rlmm, topic_id)]
        assert found == [(RECONCILE, 2), (SCRUB, 1)]

    def test_whole_sets_of_parts_come_first_then_the_largest_share(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        for part, parts, shown in ((1, 3, 3), (1, 2, 2), (3, 3, 3), (2, 3, 3), (1, 1, 1)):
            report(rlmm, topic_id, part, parts)
            assert [each.parts for each in of_topic(rlmm, topic_id)] == [shown]
        # The set of three parts is as old as its oldest part.
        report(rlmm, topic_id, 1, 3)
        assert [each.parts for each in of_topic(rlmm, topic_id)] == [1]
        for part in (2, 3):
            report(rlmm, topic_id, part, 3)
        assert [each.parts for each in of_topic(rlmm, topic_id)] == [3]

    def test_unknown_topics_are_omitted(self, rlmm: RemoteLogMetadataManager) -> None:
        known, unknown = a_topic(rlmm), uuid4()
        run = VerificationRun(SCRUB, "run")
        rlmm.report_verification(run, [VerifiedTopic(unknown), VerifiedTopic(known)])
        assert [each.verified.topic_id for each in of_topic(rlmm, known)] == [known]
        assert unknown not in {each.verified.topic_id for each in all_verifications(rlmm)}

    @pytest.mark.parametrize(
        "fields",
        [
            {"run_id": ""},
            {"run_id": "NUL \0"},
            {"part": 0},
            {"part": 3, "parts": 2},
            {"parts": MAX_PARTS + 1},
            {"listed_at_ms": -1},
        ],
    )
    def test_a_run_that_cannot_be_is_refused(
        self, rlmm: RemoteLogMetadataManager, fields: dict[str, Any]
    ) -> None:
        topic_id = a_topic(rlmm)
        with pytest.raises(InvalidRequestError):
            report(rlmm, topic_id, **{"part": 1, "parts": 1, **fields})
        assert of_topic(rlmm, topic_id) == []

    @pytest.mark.parametrize("count", [0, MAX_VERIFIED_TOPICS + 1])
    def test_no_topics_and_too_many_are_refused(
        self, rlmm: RemoteLogMetadataManager, count: int
    ) -> None:
        with pytest.raises(InvalidRequestError, match="topics"):
            rlmm.report_verification(
                VerificationRun(SCRUB, "run"), [VerifiedTopic(uuid4())] * count
            )


class VerificationLists(RlmmContractPart):
    def test_pages_of_verifications_follow_each_other(self, rlmm: RemoteLogMetadataManager) -> None:
        name = f"n{uuid4().hex}"
        ids = sorted((a_topic(rlmm, name) for _ in range(3)), key=lambda each: each.bytes)
        for kind in (SCRUB, RECONCILE):
            run = VerificationRun(kind, "run")
            rlmm.report_verification(run, [VerifiedTopic(topic_id) for topic_id in reversed(ids)])
        a_topic(rlmm, name)  # never verified
        seen, token = [], ""
        for expected in (4, 2):
            page = rlmm.list_verifications(name, page_size=4, page_token=token)
            assert len(page.verifications) == expected
            seen += [(each.verified.topic_id, each.kind) for each in page.verifications]
            token = page.next_page_token
        assert token == ""
        assert seen == [(topic_id, kind) for topic_id in ids for kind in (RECONCILE, SCRUB)]

    def test_tokens_of_verifications_belong_to_one_query(
        self, rlmm: RemoteLogMetadataManager
    ) -> None:
        topic_id = a_topic(rlmm)
        for kind in VerificationKind:
            report(rlmm, topic_id, 1, 1, kind=kind)
        token = rlmm.list_verifications(name_of(topic_id), page_size=1).next_page_token
        with pytest.raises(InvalidRequestError, match="page_token"):
            rlmm.list_verifications(page_token=token)
        with pytest.raises(InvalidRequestError, match="page_size"):
            rlmm.list_verifications(page_size=-1)
