"""Test traces: one request is followed through RLM, RSM and RLMM to the store and the database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.ids import TopicIdPartition
from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel
from services.rpc.converters.shared import topic_id_partition_to_proto
from tests.harness.databases import Store
from tests.harness.eventually import eventually
from tests.harness.read_loop import cached_reads
from tests.harness.recorders import CollectedSpan, TraceCollector, collecting_traces
from tests.harness.world import World, linked_log, running_world
from tieredstorage.v1 import remote_log_manager_pb2 as rlm_pb
from tieredstorage.v1 import remote_log_manager_pb2_grpc as rlm_grpc

RLM, RSM, RLMM = "sediment-rlm", "sediment-rsm", "sediment-rlmm"
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REQUEST_ID = "follow-this-one"


def traced(collector: TraceCollector, *services: str) -> dict[str, str]:
    """Return settings that record every trace that begins in a service."""
    return {
        name: value
        for service in services
        for name, value in (
            (f"{service}_TRACES_ENDPOINT", f"http://{collector.address}"),
            (f"{service}_TRACES_SAMPLE_RATIO", "1"),
        )
    }


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with collecting_traces() as made:
        yield made


@pytest.fixture
def traced_world(store: Store, tmp_path: Path, collector: TraceCollector) -> Iterator[World]:
    settings = traced(collector, "RSM", "RLMM")
    with running_world(tmp_path, *store, linked_log(tmp_path), settings) as made:
        yield made


def test_one_request_is_followed_through_all_services(
    traced_world: World, collector: TraceCollector, tmp_path: Path
) -> None:
    settings = traced(collector, "RLM")
    with cached_reads(traced_world, tmp_path / "rlm", tmp_path / "indexes", **settings) as reads:
        reads.rlm.start()
        name, (starts, _) = next(iter(reads.logs.items()))
        eventually(lambda: fetched(reads.rlm.address, name, starts[0] + 1))
        # Spans leave a process some seconds later, or when it stops.
        reads.rlm.stop()
        traced_world.rsm.stop()
        traced_world.rlmm.stop()
    spans = eventually(lambda: collector.of(TRACE))
    calls = [span for span in spans if "rpc.method" in span.attributes]
    assert {span.service for span in calls} == {RLM, RSM, RLMM}
    assert {span.attributes["sediment.request_id"] for span in calls} == {REQUEST_ID}
    fetches = [span for span in calls if span.attributes["rpc.method"] == "Fetch"]
    assert {span.parent for span in fetches} == {SPAN}
    known = {span.span for span in spans} | {SPAN}
    assert {span.parent for span in spans} <= known
    assert any(span.name == "S3 GET" and span.service == RSM for span in spans)
    assert any(span.name == "SELECT" and span.service == RLMM for span in spans)
    assert not any(span.is_error for span in spans)
    assert "rlm copier" in {span.name for span in collector.spans if not span.parent}
    _assert_statements(collector.spans)


def fetched(address: str, name: TopicIdPartition, offset: int) -> bytes:
    """Fetch as a client of another program that traces its calls; return the records."""
    part = rlm_pb.FetchPartition(
        topic_id_partition=topic_id_partition_to_proto(name), fetch_offset=offset, max_bytes=1
    )
    metadata = (("x-request-id", REQUEST_ID), ("traceparent", f"00-{TRACE}-{SPAN}-01"))
    with open_channel(address, PLAINTEXT) as channel:
        answers = rlm_grpc.RemoteLogManagerStub(channel).Fetch(
            # So that RLMM is asked for indexes of transactions.
            rlm_pb.FetchRequest(
                partitions=[part],
                max_bytes=1,
                isolation_level=rlm_pb.ISOLATION_LEVEL_READ_COMMITTED,
            ),
            timeout=60,
            metadata=metadata,
        )
        return b"".join(answer.record_batches for answer in answers)


def _assert_statements(spans: list[CollectedSpan]) -> None:
    """Assert that the shipping's changes are in the traces of its calls, without any value."""
    statements = [span for span in spans if span.attributes.get("db.system") == "postgresql"]
    assert {span.service for span in statements} == {RLMM}
    assert {"SELECT", "INSERT"} <= {span.name for span in statements}
    calls = {
        span.span for span in spans if span.service == RLMM and "rpc.method" in span.attributes
    }
    assert {span.parent for span in statements} <= calls
