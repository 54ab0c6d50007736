"""The store answers, and takes its time: 2 s for each request, or 1 MiB/s."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.remote_log_manager import FetchError
from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess, rsm_settings
from tests.harness.eventually import eventually
from tests.harness.faults import Delay, Fault, Throttle
from tests.harness.faulty_world import HOT, FaultyWorld, assert_local_reads_go_on, faulty_world
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy
from tests.harness.variants import first_of
from tests.harness.world import World

pytestmark = pytest.mark.deep

SLOW_FOR_S = 8.0
MOST_RECOVERY = 1.5
MOST_MORE_THREADS = 40
"""As many as the pools of RLM (copies, leases, reads) have by default, and gRPC's."""
ANSWERS = {FetchError.NONE.name, FetchError.TIERED_STORAGE_NOT_AVAILABLE.name}


@pytest.fixture
def store(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation) as proxy:
        yield proxy


@pytest.fixture
def faulty(
    deployment: World, s3: S3Endpoint, store: HttpProxy, tmp_path: Path
) -> Iterator[FaultyWorld]:
    """RSM's way to the store leads through the proxy."""
    settings = rsm_settings(replace(s3, endpoint=store.address), deployment.bucket, "")
    rsm = ServiceProcess("rsm", settings, tmp_path / "rsm")
    rsm.start()
    try:
        world = replace(deployment, rsm=rsm)
        with faulty_world(world, tmp_path) as made:
            yield made
    finally:
        rsm.kill()


@pytest.mark.long
@pytest.mark.parametrize("fault", first_of([Delay(2_000), Throttle(1024 * 1024)]))
def test_a_slow_store(faulty: FaultyWorld, store: HttpProxy, fault: Fault) -> None:
    copied, threads = faulty.copied(HOT), faulty.threads()

    def end() -> None:
        # A copy makes three requests, one after the other: it takes most of that time.
        eventually(lambda: faulty.copied(HOT) > copied)
        assert faulty.threads() <= threads + MOST_MORE_THREADS
        store.faults.clear()

    faulty.outage(lambda: store.faults.add(fault, times=None), end, SLOW_FOR_S)
    assert faulty.recovery_s() <= MOST_RECOVERY * faulty.outage_s
    reported = faulty.reported
    local = faulty.local.between(reported["gone"], reported["ends"])
    assert_local_reads_go_on(local, SLOW_FOR_S)
    assert {read.answer for read in faulty.remote.reads} <= ANSWERS
    faulty.assert_whole()
