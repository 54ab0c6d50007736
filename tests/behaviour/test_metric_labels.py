"""Test that values from outside make no series: the labels of metrics are bounded."""

from collections.abc import Iterator
from uuid import UUID

import grpc
import pytest
from prometheus_client import REGISTRY, CollectorRegistry

from services.api.ids import TopicIdPartition
from services.rlm.metrics import OTHER_TOPICS, REMOTE_FETCH_REQUESTS, TopicCounts
from services.rpc.client.calls import REQUEST_ID_KEY
from services.rsm.servicer import RemoteStorageManagerServicer
from tests.harness.served import served
from tieredstorage.v1 import remote_storage_manager_pb2_grpc as pb_grpc

INVENTED = 1_000
SERVICE = "tieredstorage.v1.RemoteStorageManager"


class NoManager:
    """An RSM that no call of this test reaches: its requests are malformed."""


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    servicer = RemoteStorageManagerServicer(NoManager())  # type: ignore[arg-type]
    with served(
        lambda server: pb_grpc.add_RemoteStorageManagerServicer_to_server(servicer, server), SERVICE
    ) as (channel, _):
        yield channel


def series(registry: CollectorRegistry = REGISTRY) -> int:
    return sum(len(family.samples) for family in registry.collect())


def calls(channel: grpc.Channel, methods: list[str]) -> set[grpc.StatusCode]:
    """Call each method with bytes that are no request, and an invented request id."""
    codes: set[grpc.StatusCode] = set()
    for number, method in enumerate(methods):
        call = channel.unary_unary(method, bytes, bytes)
        with pytest.raises(grpc.RpcError) as failed:
            call(b"\xff", timeout=60, metadata=((REQUEST_ID_KEY, f"invented-{number}"),))
        codes.add(failed.value.code())
    return codes


@pytest.mark.deep
def test_invented_methods_and_request_ids_make_no_series(channel: grpc.Channel) -> None:
    known = f"/{SERVICE}/DeleteLogSegmentData"
    calls(channel, [known])
    before = series()
    invented = [f"/{SERVICE}/Invented{number}" for number in range(INVENTED)]
    assert calls(channel, invented) == {grpc.StatusCode.UNIMPLEMENTED}
    assert calls(channel, [known] * INVENTED) == {grpc.StatusCode.INVALID_ARGUMENT}
    assert series() == before


def test_topics_that_are_not_led_make_no_series() -> None:
    counts = TopicCounts()
    registry = CollectorRegistry()
    registry.register(counts)
    counts.led(TopicIdPartition(UUID(int=1), "led", 0))
    before = series(registry)
    for number in range(INVENTED):
        counts.add(REMOTE_FETCH_REQUESTS, f"invented-{number}")
    assert series(registry) == before
    assert registry.get_sample_value(
        f"{REMOTE_FETCH_REQUESTS.name}_total", {"topic": OTHER_TOPICS}
    ) == float(INVENTED)
