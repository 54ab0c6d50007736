"""Run the RLMM suite over the gRPC client."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from services.api.calls import AtRevision, MutationContext
from services.api.errors import ThrottledError
from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery
from services.api.remote_log_metadata_manager import all_events, all_segments, segments_by_id
from services.api.segment_batches import SegmentAddition, SegmentLookup
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.limits import Limits
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.contract import wire_cases
from tests.contract.remote_log_metadata_manager_contract import RemoteLogMetadataManagerContract
from tests.contract.rlmm.segments import add, finished, id_of, segment
from tests.harness.served import served_manager


@pytest.fixture(scope="module")
def rlmm(rlmm_database_url: str) -> Iterator[RemoteLogMetadataManagerClient]:
    """Provide one database for all tests: each test has a topic of its own."""
    with client_over(rlmm_database_url) as made:
        yield made


@contextmanager
def client_over(
    database_url: str, limits: Limits | None = None
) -> Iterator[RemoteLogMetadataManagerClient]:
    engine = create_database_engine(database_url)

    with served_manager(SqlRemoteLogMetadataManager(engine, limits)) as (channel, address):
        yield RemoteLogMetadataManagerClient(channel, address)
    engine.dispose()


class TestRemoteLogMetadataManagerClient(RemoteLogMetadataManagerContract):
    wire_cases = wire_cases.RLMM


@pytest.mark.deep
def test_a_page_of_large_segments_fits_into_a_message(database_url: str) -> None:
    largest = 65_536
    tp = TopicIdPartition(uuid4(), "orders", 0)
    with client_over(database_url, Limits(custom_metadata_bytes=largest)) as rlmm:
        for start in range(80):
            add(rlmm, segment(tp, start, start, custom_metadata=bytes(largest)))
        assert [s.start_offset for s in all_segments(rlmm, tp)] == list(range(80))


@pytest.mark.deep
def test_answers_of_large_segments_fit_into_a_message(database_url: str) -> None:
    largest, count = 65_536, 80
    tp = TopicIdPartition(uuid4(), "orders", 0)
    with client_over(database_url, Limits(custom_metadata_bytes=largest)) as rlmm:
        made = [
            finished(rlmm, tp, start, start, custom_metadata=bytes(largest))
            for start in range(count)
        ]
        ids = [id_of(each) for each in made]
        found = rlmm.remote_log_segment_metadata_by_id(tp, ids).value
        assert 40 < len(found) < count
        assert [each.start_offset for each in found] == list(range(len(found)))
        assert sorted(id_of(each) for each in segments_by_id(rlmm, tp, ids)) == sorted(ids)

        lookups = [SegmentLookup(tp, 0, start) for start in range(count)]
        outcomes = rlmm.remote_log_segment_metadata_batch(lookups)
        fitting = [each for each in outcomes if isinstance(each, AtRevision)]
        assert len(fitting) == len(found)
        assert outcomes[: len(fitting)] == fitting
        left_out = outcomes[len(fitting) :]
        assert {type(each) for each in left_out} == {ThrottledError}
        rest = rlmm.remote_log_segment_metadata_batch(lookups[len(fitting) :])
        assert {type(each) for each in rest} == {AtRevision}


@pytest.mark.deep
def test_a_page_of_long_events_fits_into_a_message(database_url: str) -> None:
    long = "\N{GRINNING FACE}" * 256
    why = MutationContext(reason=long, rule_detail=long, plan_id=long)
    tp = TopicIdPartition(uuid4(), "orders", 0)
    with client_over(database_url) as rlmm:
        for first in (0, 1_000):
            additions = [
                SegmentAddition(segment(tp, n, n), why) for n in range(first, first + 1_000)
            ]
            rlmm.add_remote_log_segment_metadata_batch(additions)
        page = rlmm.list_events(EventQuery(tp), page_size=2_000)
        assert 500 < len(page.events) < 2_000
        assert page.next_page_token
        assert [e.revision for e in all_events(rlmm, EventQuery(tp))] == list(range(1, 2_001))
