"""Test anomalies: counted once for each run, listed in the order in which they were first seen."""

from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from services.api.calls import MutationContext
from services.api.errors import InvalidRequestError, RemoteResourceNotFoundError
from services.api.operations import (
    MAX_ANOMALIES,
    MAX_DETAIL_LENGTH,
    MAX_OBJECT_DELETIONS,
    MAX_OBJECT_KEY_BYTES,
    Anomaly,
    AnomalyKind,
    AnomalyQuery,
    ObjectDeletion,
    RecordedAnomaly,
)
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    all_anomalies,
    all_events,
)
from services.api.validation import INT64_MAX
from tests.contract.rlmm.segments import RlmmContractPart

ORPHAN = AnomalyKind.ORPHAN_OBJECTS
CORRUPT = AnomalyKind.CORRUPT_OBJECT


def anomaly(topic_id: UUID, **fields: Any) -> Anomaly:
    values: dict[str, Any] = {
        "kind": ORPHAN,
        "partition": 3,
        "segment_id": uuid4(),
        "object_key": "prefix/x.log",
        "detail": "1 of 3 objects",
        **fields,
    }
    return Anomaly(topic_id=topic_id, **values)


def seen(rlmm: RemoteLogMetadataManager, topic_id: UUID, **query: Any) -> list[RecordedAnomaly]:
    return list(all_anomalies(rlmm, AnomalyQuery(topic_id=topic_id, **query)))


def found(rlmm: RemoteLogMetadataManager, topic_id: UUID, **query: Any) -> list[Anomaly]:
    return [each.anomaly for each in seen(rlmm, topic_id, **query)]


class ReportedAnomalies(RlmmContractPart):
    @pytest.fixture
    def topic_id(self) -> UUID:
        """Return a topic that RLMM does not know."""
        return uuid4()

    def test_anomaly_is_stored_unchanged(self, topic_id: UUID) -> None:
        made = [anomaly(topic_id, kind=kind, object_key="") for kind in AnomalyKind]
        self.rlmm.report_anomalies(made, "run-1")
        listed = seen(self.rlmm, topic_id)
        assert sorted(map(repr, (each.anomaly for each in listed))) == sorted(map(repr, made))
        for each in listed:
            assert (each.times_seen, each.run_id) == (1, "run-1")
            assert 0 < each.first_seen_ms == each.last_seen_ms

    def test_seen_by_another_run_it_is_seen_once_more_with_the_newest_detail(
        self, topic_id: UUID
    ) -> None:
        first = anomaly(topic_id)
        self.rlmm.report_anomalies([first], "run-1")
        [before] = seen(self.rlmm, topic_id)
        newer = replace(first, detail="2 of 3 objects")
        self.rlmm.report_anomalies([newer], "run-2")
        [after] = seen(self.rlmm, topic_id)
        assert (after.anomaly, after.times_seen, after.run_id) == (newer, 2, "run-2")
        assert after.first_seen_ms == before.first_seen_ms
        assert after.last_seen_ms >= before.last_seen_ms

    def test_the_same_run_counts_once_also_if_others_came_between(self, topic_id: UUID) -> None:
        only = anomaly(topic_id)
        for run in ("a", "a", "b", "a", "b", "c", "a"):
            self.rlmm.report_anomalies([only], run)
        [after] = seen(self.rlmm, topic_id)
        assert (after.times_seen, after.run_id) == (3, "c")
        self.rlmm.report_anomalies([replace(only, detail="late")], "a")
        assert seen(self.rlmm, topic_id) == [after]

    def test_the_last_ten_runs_are_known_again(self, topic_id: UUID) -> None:
        only = anomaly(topic_id)
        for run in range(12):
            self.rlmm.report_anomalies([only], f"run-{run}")
        for run in range(2, 12):
            self.rlmm.report_anomalies([only], f"run-{run}")
        [after] = seen(self.rlmm, topic_id)
        assert (after.times_seen, after.run_id) == (12, "run-11")
        self.rlmm.report_anomalies([only], "run-1")
        assert seen(self.rlmm, topic_id)[0].times_seen == 13

    def test_the_same_twice_in_a_report_is_one(self, topic_id: UUID) -> None:
        only = anomaly(topic_id)
        self.rlmm.report_anomalies([only, replace(only, detail="again"), only], "run-1")
        assert [each.times_seen for each in seen(self.rlmm, topic_id)] == [1]

    @pytest.mark.parametrize(
        "other",
        [
            {"kind": CORRUPT},
            {"topic_id": UUID(int=1)},
            {"partition": 4},
            {"segment_id": UUID(int=1)},
            {"object_key": "prefix/x.indexes"},
            {"object_key": ""},
        ],
        ids=str,
    )
    def test_anomaly_with_a_different_key_field_is_another_one(
        self, topic_id: UUID, other: dict[str, Any]
    ) -> None:
        first = anomaly(topic_id)
        # A topic id of its own, as the database is not empty.
        known: dict[str, Any] = {
            key: uuid4() if isinstance(value, UUID) else value for key, value in other.items()
        }
        second = replace(first, **known)
        self.rlmm.report_anomalies([first, second], "run-1")
        assert found(self.rlmm, first.topic_id, kinds=(first.kind,)).count(first) == 1
        assert found(self.rlmm, second.topic_id, kinds=(second.kind,)).count(second) == 1

    def test_the_longest_that_there_can_be_is_kept(self, topic_id: UUID) -> None:
        wide = "\N{GRINNING FACE}"
        only = anomaly(
            topic_id,
            object_key=wide * (MAX_OBJECT_KEY_BYTES // 4),
            detail=wide * MAX_DETAIL_LENGTH,
        )
        self.rlmm.report_anomalies([only], wide * 256)
        [listed] = seen(self.rlmm, topic_id)
        assert (listed.anomaly, listed.run_id) == (only, wide * 256)

    @pytest.mark.parametrize("count", [0, MAX_ANOMALIES + 1])
    def test_no_anomaly_and_too_many_are_refused(self, topic_id: UUID, count: int) -> None:
        with pytest.raises(InvalidRequestError, match=f"^anomalies: .* are {count}"):
            self.rlmm.report_anomalies([anomaly(topic_id)] * count, "run-1")

    @pytest.mark.parametrize(
        ("run_id", "message"),
        [
            ("", "^run_id: must be 1 to 256 characters, has 0"),
            ("x" * 257, "^run_id: .* has 257"),
            ("a\0", "^run_id: must not contain NUL"),
        ],
    )
    def test_a_run_has_a_name(self, topic_id: UUID, run_id: str, message: str) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            self.rlmm.report_anomalies([anomaly(topic_id)], run_id)

    @pytest.mark.parametrize("field", ["object_key", "detail"])
    def test_text_that_cannot_be_stored_is_named_and_refuses_the_whole_report(
        self, topic_id: UUID, field: str
    ) -> None:
        bad = anomaly(topic_id, **{field: "a\0b"})
        with pytest.raises(
            InvalidRequestError, match=rf"^anomalies\[1\].{field}: must not contain"
        ):
            self.rlmm.report_anomalies([anomaly(topic_id), bad], "run-1")
        assert seen(self.rlmm, topic_id) == []


class AnomalyLists(RlmmContractPart):
    def test_pages_follow_each_other_the_first_seen_first(self) -> None:
        topic_id = uuid4()
        made = [anomaly(topic_id, partition=number) for number in range(5)]
        for each in made:
            self.rlmm.report_anomalies([each], "run-1")
        self.rlmm.report_anomalies([made[0]], "run-2")
        query, token = AnomalyQuery(topic_id=topic_id), ""
        pages: list[list[int]] = []
        while not pages or token:
            page = self.rlmm.list_anomalies(query, page_size=2, page_token=token)
            pages.append([each.anomaly.partition for each in page.anomalies])
            token = page.next_page_token
        assert pages == [[0, 1], [2, 3], [4]]

    def test_many_of_one_report_are_all_listed_once(self) -> None:
        topic_id = uuid4()
        made = [anomaly(topic_id, partition=number) for number in range(MAX_ANOMALIES)]
        self.rlmm.report_anomalies(made, "run-1")
        query = AnomalyQuery(topic_id=topic_id)
        first = self.rlmm.list_anomalies(query)
        assert len(first.anomalies) == 500
        rest = self.rlmm.list_anomalies(query, page_size=5_000, page_token=first.next_page_token)
        numbers = [each.anomaly.partition for each in (*first.anomalies, *rest.anomalies)]
        assert (sorted(numbers), rest.next_page_token) == (list(range(MAX_ANOMALIES)), "")

    def test_they_can_be_asked_for_by_kind_topic_and_time(self) -> None:
        topic_id, other = uuid4(), uuid4()
        orphan, corrupt = anomaly(topic_id), anomaly(topic_id, kind=CORRUPT)
        self.rlmm.report_anomalies([orphan, corrupt, anomaly(other)], "run-1")
        assert found(self.rlmm, topic_id, kinds=(CORRUPT,)) == [corrupt]
        assert found(self.rlmm, topic_id, kinds=(CORRUPT, AnomalyKind.MISSING_OBJECTS)) == [corrupt]
        assert len(found(self.rlmm, topic_id, kinds=(CORRUPT, ORPHAN))) == 2
        assert found(self.rlmm, topic_id, kinds=(AnomalyKind.ABANDONED_UPLOAD,)) == []
        assert len(found(self.rlmm, other)) == 1
        last = max(each.last_seen_ms for each in seen(self.rlmm, topic_id))
        assert len(found(self.rlmm, topic_id, last_seen_from_ms=0)) == 2
        for later in (last + 1, INT64_MAX):
            assert found(self.rlmm, topic_id, last_seen_from_ms=later) == []
        everything = [each.anomaly for each in all_anomalies(self.rlmm)]
        assert orphan in everything

    def test_an_anomaly_seen_again_is_one_that_was_seen_lately(self) -> None:
        topic_id = uuid4()
        old, again = anomaly(topic_id), anomaly(topic_id)
        self.rlmm.report_anomalies([old, again], "run-1")
        before = max(each.last_seen_ms for each in seen(self.rlmm, topic_id))
        run = 2
        while found(self.rlmm, topic_id, last_seen_from_ms=before + 1) != [again]:
            self.rlmm.report_anomalies([again], f"run-{run}")
            run += 1
        assert len(found(self.rlmm, topic_id)) == 2

    def test_a_page_of_anomalies_is_asked_for_rightly(self) -> None:
        topic_id = uuid4()
        self.rlmm.report_anomalies([anomaly(topic_id), anomaly(topic_id)], "run-1")
        query = AnomalyQuery(topic_id=topic_id)
        with pytest.raises(InvalidRequestError, match="page_size: must not be negative"):
            self.rlmm.list_anomalies(query, page_size=-1)
        with pytest.raises(InvalidRequestError, match="page_token: not a page token"):
            self.rlmm.list_anomalies(query, page_token="nonsense")
        token = self.rlmm.list_anomalies(query, page_size=1).next_page_token
        for other in (AnomalyQuery(), replace(query, kinds=(ORPHAN,))):
            with pytest.raises(InvalidRequestError, match="page_token: is of another query"):
                self.rlmm.list_anomalies(other, page_token=token)


class ObjectDeletions(RlmmContractPart):
    def test_each_deleted_object_is_an_event_with_its_key(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp)], [], 1)
        before = self.rlmm.partition_revisions([self.tp])[0]
        deletions = [ObjectDeletion(uuid4(), f"1:prefix/{name}") for name in ("x.log", "x.indexes")]
        why = MutationContext(reason="orphan", rule_detail="left behind", plan_id="run-1")
        outcome = self.rlmm.record_object_deletions(self.tp, deletions, why)
        assert (outcome.applied, outcome.revision) == (True, before + 2)
        events = list(all_events(self.rlmm, EventQuery(self.tp, plan_id="run-1")))
        assert [(each.kind, each.segment_id, each.key) for each in events] == [
            ("OBJECT_DELETION", each.segment_id, each.object_key) for each in deletions
        ]
        assert {(each.reason, each.rule_detail) for each in events} == {("orphan", "left behind")}

    def test_one_request_id_records_them_once(self) -> None:
        self.rlmm.on_partition_leadership_changes([PartitionLeadership(self.tp)], [], 1)
        deletions = [ObjectDeletion(uuid4(), f"1:prefix/{number}") for number in range(3)]
        why = MutationContext(request_id="one", plan_id="run-1")
        first = self.rlmm.record_object_deletions(self.tp, deletions, why)
        assert self.rlmm.record_object_deletions(self.tp, deletions, why) == first
        assert len(list(all_events(self.rlmm, EventQuery(self.tp, plan_id="run-1")))) == 3

    def test_deletions_of_an_unknown_partition_are_refused(self) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            self.rlmm.record_object_deletions(self.tp, [ObjectDeletion(uuid4(), "1:x")])

    @pytest.mark.parametrize("count", [0, MAX_OBJECT_DELETIONS + 1])
    def test_no_deletions_and_too_many_are_refused(self, count: int) -> None:
        with pytest.raises(InvalidRequestError, match="deletions: must be 1 to 1000"):
            self.rlmm.record_object_deletions(self.tp, [ObjectDeletion(uuid4(), "1:x")] * count)

    def test_a_key_that_cannot_be_stored_is_refused_by_its_place(self) -> None:
        deletions = [ObjectDeletion(uuid4(), "1:x"), ObjectDeletion(uuid4(), "1:x\0")]
        with pytest.raises(InvalidRequestError, match=r"deletions\[1\].object_key"):
            self.rlmm.record_object_deletions(self.tp, deletions)
