"""Test what bounds watches: their partitions, their memory, their age and the policy."""

import gc
import tracemalloc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr
from sqlalchemy import Engine

from services.api.errors import (
    PermissionDeniedError,
    RetriableRemoteStorageError,
    ThrottledError,
)
from services.api.ids import TopicIdPartition
from services.api.roles import Role
from services.api.watches import WatchedPartition, WatchUpdate
from services.rlmm.database.shares import AGE_SPREAD, WatchLimits
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.servicer import RemoteLogMetadataManagerServicer, add_to_server
from services.rlmm.settings import RlmmSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.converters import shared
from services.rpc.converters.partitions import watched_to_proto
from tests.contract.rlmm.segments import finished
from tests.harness.databases import OwnRlmm
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, spiffe
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

METHOD = "/tieredstorage.v1.RemoteLogMetadataManager/WatchPartitions"
MOST_BYTES = 512

Client = RemoteLogMetadataManagerClient
Clients = Callable[[str], Client]
Watching = Generator[WatchUpdate, None, None]


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    for name in ("first", "second"):
        made.grant(spiffe(name), *Role)
    return made


@contextmanager
def serving(deployment: Deployment, engine: Engine, limits: WatchLimits) -> Iterator[Clients]:
    """Serve RLMM over TLS; yield a function that opens a client of an identity."""
    rlmm = SqlRemoteLogMetadataManager(engine, watch_limits=limits)

    with deployment.served(partial(add_to_server, rlmm)) as ports, ExitStack() as cleanup:
        cleanup.callback(rlmm.end_watches)

        def client(name: str) -> Client:
            channel = cleanup.enter_context(open_channel(ports.address, deployment.client(name)))
            return RemoteLogMetadataManagerClient(channel, ports.address)

        yield client


def partitions(count: int, topic: str = "orders") -> list[WatchedPartition]:
    topic_id = UUID(int=uuid4().int)
    return [WatchedPartition(TopicIdPartition(topic_id, topic, number)) for number in range(count)]


def begun(client: Client, watched: Sequence[WatchedPartition]) -> Watching:
    """Return a watch that has had its first update."""
    updates = client.watch_partitions(watched)
    assert len(next(updates).partitions) == len(watched)
    return updates


def refusal(client: Client, count: int) -> str:
    with (
        closing(client.watch_partitions(partitions(count))) as updates,
        pytest.raises(ThrottledError) as caught,
    ):
        next(updates)
    return str(caught.value)


def test_watched_partitions_are_bounded_for_an_identity_and_in_all(
    deployment: Deployment, engine: Engine
) -> None:
    settings = RlmmSettings(
        database_url=SecretStr("postgresql://u@h/d"),
        watched_partitions_max=10,
        **deployment.settings().model_dump(exclude_unset=True),
    )
    limits = settings.watch_limits()
    with serving(deployment, engine, limits) as client, ExitStack() as watches:
        first, second = client("first"), client("second")
        eight = watches.enter_context(closing(begun(first, partitions(8))))
        assert refusal(first, 3) == (
            f"too many watched partitions of {spiffe('first')} (limit 10): 8 are watched and this "
            "watch names 3; retry when others have ended, or raise RLMM_WATCHED_PARTITIONS_MAX"
        )
        watches.enter_context(closing(begun(first, partitions(2))))
        # Ten are three quarters of all, rounded up.
        watches.enter_context(closing(begun(second, partitions(4))))
        assert refusal(second, 1).startswith(
            "too many watched partitions in all (limit 14): 14 are watched and this watch names 1;"
        )
        eight.close()
        # RLMM sees within a heartbeat that it has ended.
        eventually(lambda: is_begun(first, 8))


def is_begun(client: Client, count: int) -> bool:
    try:
        begun(client, partitions(count)).close()
    except ThrottledError:
        return False
    return True


def test_a_watch_ends_at_its_maximum_age_and_resumes(
    deployment: Deployment, engine: Engine, tp: TopicIdPartition
) -> None:
    before = ended("age")
    with serving(deployment, engine, WatchLimits(max_age_s=1)) as client:
        first = client("first")
        finished(first, tp, 0, 9)
        with (
            closing(first.watch_partitions([WatchedPartition(tp)])) as updates,
            pytest.raises(RetriableRemoteStorageError, match="reached its maximum age"),
        ):
            for _ in updates:
                pass
        assert ended("age") == before + 1
        finished(first, tp, 10, 19)
        with closing(first.watch_partitions([WatchedPartition(tp, 2)])) as updates:
            (change,) = next(updates).partitions
            assert (change.revision, len(change.segments)) == (4, 1)


def ended(reason: str) -> float:
    labels = {"reason": reason}
    return REGISTRY.get_sample_value("sediment_rlmm_watches_ended_total", labels) or 0


def test_watches_do_not_all_end_at_one_age() -> None:
    limits = WatchLimits(max_age_s=100)
    ages = [limits.random_age_s() for _ in range(100)]
    assert 100 * (1 - AGE_SPREAD) <= min(ages) < max(ages) <= 100
    assert max(ages) - min(ages) > 1


def test_a_watch_ends_when_the_policy_takes_its_topic_away(
    deployment: Deployment, engine: Engine
) -> None:
    def ended_by_policy() -> float:
        labels = {"method": METHOD, "reason": "policy_change"}
        return REGISTRY.get_sample_value("sediment_denied_calls_total", labels) or 0

    deployment.grant(spiffe("narrow"), Role.READER, topics=["orders-*", "payroll"])
    with serving(deployment, engine, WatchLimits()) as client:
        narrow = client("narrow")
        kept, lost = partitions(2, "orders-1"), partitions(1, "payroll")
        with closing(begun(narrow, kept)) as stays, closing(begun(narrow, kept + lost)) as ends:
            before = ended_by_policy()
            deployment.grant(spiffe("narrow"), Role.READER, topics=["orders-*"])
            with pytest.raises(RetriableRemoteStorageError):
                for _ in ends:
                    pass
            eventually(lambda: ended_by_policy() == before + 1)
            with pytest.raises(PermissionDeniedError, match="on topic 'payroll'"):
                next(narrow.watch_partitions(kept + lost))
            assert next(stays).partitions == ()


@pytest.mark.deep
def test_a_watched_partition_takes_little_memory(rlmm: OwnRlmm) -> None:
    """Each partition is of a topic of its own with a name of 100 characters."""
    many = 1_000
    servicer = RemoteLogMetadataManagerServicer(rlmm)
    names = [f"{number:0100}" for number in range(many)]
    request = pb.WatchPartitionsRequest(
        partitions=[watched_to_proto(partitions(1, name)[0]) for name in names]
    ).SerializeToString()
    tracemalloc.start()
    try:
        answers = servicer.WatchPartitions(
            pb.WatchPartitionsRequest.FromString(request), cast(Any, None)
        )
        updates = cast(Generator[pb.WatchPartitionsResponse, None, None], answers)
        assert len(next(updates).partitions) == many
        assert not next(updates).partitions
        # The last partitions that any request named; their number is bounded.
        shared._topic_id_partition.cache_clear()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        updates.close()
    finally:
        tracemalloc.stop()
    assert size / many < MOST_BYTES
