"""One identity abuses RSM or RLMM as it is deployed: another one is served meanwhile.

A flood has a process of its own with the lowest priority, so that the rates (`-s`) show what the
service spends on it; `python -m benchmarks abuses` measures them.
"""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import psutil
import pytest

from services.api.errors import RetriableRemoteStorageError, ThrottledError
from services.api.ids import TopicIdPartition
from services.api.roles import Role
from services.api.watches import WatchedPartition
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rpc.converters.partitions import watched_to_proto
from services.rpc.converters.shared import metadata_to_proto
from services.rpc.server.admission import RETAINED_S
from services.rpc.server.server import MAX_CALLS_OF_A_CONNECTION
from tests.contract.remote_storage_manager_contract import Files, a_segment, copied, fetched
from tests.contract.rlmm.segments import finished, revision_of
from tests.deep.test_service_processes import SERVING, Running, files_settings, started
from tests.harness.abuses import ABUSES, FLOODING, FLOODS, RLMM_ABUSES, Cpu, abused
from tests.harness.eventually import eventually
from tests.harness.secured import Deployment, serving_rsm, spiffe
from tieredstorage.v1 import remote_log_metadata_manager_pb2 as rlmm_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

MEASURED_S = 2.0
LOG = bytes(range(256)) * 4 * 256  # 256 KiB
LARGE_LOG = LOG * 64
# A client that starves does no round. The bound says no more, because the abuse, the service and
# the client share this machine with others; without abuse it takes less than a second.
LEAST_ROUNDS = 5
STARVED_CALLS = 200
LIMIT_S = 60
MIB = 1024 * 1024
MOST_GROWTH_BYTES = 192 * MIB


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    made = Deployment(tmp_path_factory.mktemp("secured"))
    for name in ("honest", "abuser"):
        made.grant(spiffe(name), *Role)
    return made


def rsm_settings(deployment: Deployment, directory: Path) -> dict[str, str]:
    return {
        **files_settings(directory),
        **deployment.environment("RSM"),
        # No abuse ends because it is idle for too long.
        "RSM_STREAM_IDLE_TIMEOUT_MS": "600000",
        "RSM_METRICS_PLAINTEXT": "true",
    }


@pytest.fixture(scope="module")
def rsm(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("rsm")
    settings = rsm_settings(deployment, directory / "files")
    with started("rsm", settings, directory / "process") as running:
        running.wait_until(SERVING)
        yield running


@pytest.fixture(scope="module")
def honest(rsm: Running, deployment: Deployment) -> Iterator[RemoteStorageManagerClient]:
    with open_channel(rsm.address, deployment.client("honest")) as channel:
        yield RemoteStorageManagerClient(channel, rsm.address)


T = TypeVar("T")


def rounds_per_s(client: RemoteStorageManagerClient, for_s: float) -> float:
    """Copy, read and delete for so long, LEAST_ROUNDS times at least, within LIMIT_S.

    Return the number of rounds per second.
    """
    began_s, done = time.monotonic(), 0
    while (elapsed_s := time.monotonic() - began_s) < for_s or done < LEAST_ROUNDS:
        assert elapsed_s < LIMIT_S, f"{done} rounds in {LIMIT_S} s"
        one_round(client)
        done += 1
    return done / elapsed_s


def one_round(client: RemoteStorageManagerClient) -> None:
    segment = retried(lambda: copied(client, Files(LOG)))
    assert retried(lambda: fetched(client, segment)) == LOG
    retried(lambda: client.delete_log_segment_data(segment))


def retried(call: Callable[[], T]) -> T:
    """Call again at once if the service is full, as long as eventually does."""
    found: list[T] = []

    def is_served() -> bool:
        with suppress(ThrottledError, RetriableRemoteStorageError):
            found.append(call())
        return bool(found)

    eventually(is_served)
    return found[0]


@pytest.mark.parametrize("abuse", ABUSES)
def test_an_honest_identity_is_served_beside_an_abuse(
    rsm: Running, deployment: Deployment, honest: RemoteStorageManagerClient, abuse: str
) -> None:
    request = b""
    if abuse == "slow_readers":
        segment = retried(lambda: copied(honest, Files(LARGE_LOG)))
        read = pb.FetchLogSegmentRequest(metadata=metadata_to_proto(segment), start_position=0)
        request = read.SerializeToString()
    one_round(honest)
    before_bytes = rss_bytes(rsm)
    undisturbed = rounds_per_s(honest, MEASURED_S)
    cpu = Cpu.LEFT_OVER if abuse in FLOODS else Cpu.EQUAL
    with abused(abuse, rsm.address, deployment.client("abuser"), request, cpu):
        rate = rounds_per_s(honest, MEASURED_S)
        assert rsm.status() == SERVING
        grown = rss_bytes(rsm) - before_bytes
    sys.stdout.write(
        f"{abuse}: {rate:.1f} rounds/s, {rate / undisturbed:.0%} of {undisturbed:.1f} "
        f"without abuse; memory {grown / MIB:+.0f} MiB\n"
    )
    assert grown < MOST_GROWTH_BYTES
    # And all is as before when the abuse is over.
    one_round(honest)


def test_a_connection_cannot_make_the_service_work_by_resets(
    rsm: Running, deployment: Deployment, honest: RemoteStorageManagerClient
) -> None:
    one_round(honest)
    before, began_s = calls_reset(rsm), time.monotonic()
    with abused(
        "rapid_resets", rsm.address, deployment.client("abuser"), cpu=Cpu.LEFT_OVER
    ) as counted:
        eventually(lambda: calls_reset(rsm) > before)
        rounds_per_s(honest, 3 * MEASURED_S)
    # The first calls and the last ones are no full second apart from others.
    seconds = (time.monotonic() - began_s) / RETAINED_S + 2
    handled = calls_reset(rsm) - before
    sys.stdout.write(
        f"rapid_resets: {handled:.0f} calls handled of {counted.times} in {seconds - 2:.1f} s\n"
    )
    assert handled <= seconds * FLOODING * MAX_CALLS_OF_A_CONNECTION


def calls_reset(rsm: Running) -> float:
    counts = re.findall(r'^sediment_rpc_seconds_count\{code="CANCELLED".* (.*)$', rsm.page(), re.M)
    return sum(map(float, counts))


def test_without_shares_the_honest_identity_would_starve(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The share is what keeps it served: this test says that the others can fail."""
    with (
        serving_rsm(deployment.settings(), tmp_path / "files", identity_share_percent=100) as ports,
        open_channel(ports.address, deployment.client("honest")) as channel,
        abused("requests_that_never_arrive", ports.address, deployment.client("abuser")),
    ):
        client = RemoteStorageManagerClient(channel, ports.address)
        # With the share a call or two are refused, until the calls that found no room have ended.
        for _ in range(STARVED_CALLS):
            with pytest.raises(ThrottledError, match="too many concurrent unary calls"):
                client.delete_log_segment_data(a_segment())


def rss_bytes(rsm: Running) -> int:
    return int(psutil.Process(rsm.process.pid).memory_info().rss)


RLMM_ROUNDS = 10
MOST_RLMM_GROWTH_BYTES = 96 * MIB


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


def one_rlmm_round(client: RemoteLogMetadataManagerClient) -> None:
    """Add a segment, read it and watch its partition."""
    tp = a_partition()
    finished(client, tp, 0, 9)
    assert revision_of(client, tp) == 2
    with closing(client.watch_partitions([WatchedPartition(tp, 0)])) as updates:
        (change,) = next(updates).partitions
        assert (change.revision, len(change.segments)) == (2, 1)


def is_served(client: RemoteLogMetadataManagerClient) -> bool:
    with suppress(ThrottledError, RetriableRemoteStorageError):
        one_rlmm_round(client)
        return True
    return False


def is_refused(client: RemoteLogMetadataManagerClient) -> bool:
    """Return whether the abuser's identity has no room left."""
    try:
        one_rlmm_round(client)
    except ThrottledError as e:
        return f"calls of {spiffe('abuser')} (limit" in str(e)
    return False


@pytest.mark.parametrize("abuse", RLMM_ABUSES)
def test_an_honest_identity_of_rlmm_is_served_beside_an_abuse(
    rlmm: Running, deployment: Deployment, abuse: str
) -> None:
    watched = [watched_to_proto(WatchedPartition(a_partition("a" * 100))) for _ in range(3)]
    request = rlmm_pb.WatchPartitionsRequest(partitions=watched).SerializeToString()
    with open_channel(rlmm.address, deployment.client("honest")) as channel:
        honest = RemoteLogMetadataManagerClient(channel, rlmm.address)
        one_rlmm_round(honest)
        before_bytes = rss_bytes(rlmm)
        with abused(abuse, rlmm.address, deployment.client("abuser"), request):
            # The abuse has all that its identity may have.
            with open_channel(rlmm.address, deployment.client("abuser")) as abusers:
                greedy = RemoteLogMetadataManagerClient(abusers, rlmm.address)
                eventually(lambda: is_refused(greedy))
            for _ in range(RLMM_ROUNDS):
                eventually(lambda: is_served(honest))
            assert rlmm.status() == SERVING
            assert rss_bytes(rlmm) - before_bytes < MOST_RLMM_GROWTH_BYTES
        eventually(lambda: is_served(honest))
