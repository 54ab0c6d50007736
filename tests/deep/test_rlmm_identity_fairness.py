"""One identity abuses RLMM as it is deployed: another one is served meanwhile."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.roles import Role
from services.api.watches import WatchedPartition
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.converters.partitions import watched_to_proto
from tests.contract.rlmm.segments import finished, revision_of
from tests.deep.test_service_processes import SERVING, Running, started
from tests.harness.abuses import RLMM_ABUSES, abused
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, spiffe
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as pb

ROUNDS = 10
MOST_GROWTH_BYTES = 96 * 1024 * 1024


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path)
    for name in ("honest", "abuser"):
        made.grant(spiffe(name), *Role)
    return made


@pytest.fixture
def rlmm(deployment: Deployment, database_url: str, tmp_path: Path) -> Iterator[Running]:
    settings = {
        **deployment.environment("RLMM"),
        "RLMM_DATABASE_URL": database_url,
        # No abuse ends because it is idle for too long.
        "RLMM_STREAM_IDLE_TIMEOUT_MS": "600000",
    }
    with started("rlmm", settings, tmp_path / "process") as running:
        running.wait_until(SERVING)
        yield running


def a_partition(topic: str = "orders") -> TopicIdPartition:
    return TopicIdPartition(UUID(int=uuid4().int), topic, 0)


def one_round(client: RemoteLogMetadataManagerClient) -> None:
    """Add a segment, read it and watch its partition."""
    tp = a_partition()
    finished(client, tp, 0, 9)
    assert revision_of(client, tp) == 2
    with closing(client.watch_partitions([WatchedPartition(tp, 0)])) as updates:
        (change,) = next(updates).partitions
        assert (change.revision, len(change.segments)) == (2, 1)


def is_served(client: RemoteLogMetadataManagerClient) -> bool:
    with suppress(ThrottledError, RetriableRemoteStorageError):
        one_round(client)
        return True
    return False


def is_refused(client: RemoteLogMetadataManagerClient) -> bool:
    """Return whether the abuser's identity has no room left."""
    try:
        one_round(client)
    except ThrottledError as e:
        return f"calls of {spiffe('abuser')} (limit" in str(e)
    return False


@pytest.mark.parametrize("abuse", RLMM_ABUSES)
def test_an_honest_identity_is_served_beside_an_abuse(
    rlmm: Running, deployment: Deployment, abuse: str
) -> None:
    watched = [watched_to_proto(WatchedPartition(a_partition("a" * 100))) for _ in range(3)]
    request = pb.WatchPartitionsRequest(partitions=watched).SerializeToString()
    with open_channel(rlmm.address, deployment.client("honest")) as channel:
        honest = RemoteLogMetadataManagerClient(channel, rlmm.address)
        one_round(honest)
        before_bytes = rss_bytes(rlmm)
        with abused(abuse, rlmm.address, deployment.client("abuser"), request):
            # The abuse has all that its identity may have.
            with open_channel(rlmm.address, deployment.client("abuser")) as abusers:
                greedy = RemoteLogMetadataManagerClient(abusers, rlmm.address)
                eventually(lambda: is_refused(greedy))
            for _ in range(ROUNDS):
                eventually(lambda: is_served(honest))
            assert rlmm.status() == SERVING
            assert rss_bytes(rlmm) - before_bytes < MOST_GROWTH_BYTES
        eventually(lambda: is_served(honest))


def rss_bytes(rlmm: Running) -> int:
    return int(psutil.Process(rlmm.process.pid).memory_info().rss)
