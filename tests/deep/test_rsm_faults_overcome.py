"""RSM over a store that is slow, narrow, overloaded or cut off now and then: nobody notices."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    RemoteStorageManagerContract,
    StoredKeys,
    copied,
    some_bytes,
)
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.contract.rsm_through_faults import (
    IDEMPOTENT,
    SILENCE_MS,
    Weather,
    assert_survives,
    rsm_behind,
    weather_of,
)
from tests.harness.faults import (
    Answer,
    BlackHole,
    Delay,
    Direction,
    Reset,
    Stall,
    Throttle,
)
from tests.harness.http_messages import s3_operation
from tests.harness.http_proxy import HttpProxy

# With three tenths of requests failing, one of 500,000 fails eleven times.
_RETRIES = 10


@pytest.fixture
def proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation, seed=8) as running:
        yield running


class TestThroughAnUnsteadyConnection(RemoteStorageManagerContract):
    @pytest.fixture
    def manager(
        self, proxy: HttpProxy, settings: RsmSettings
    ) -> Iterator[ObjectRemoteStorageManager]:
        faults = proxy.faults
        faults.storm(Answer(503), 0.05)
        faults.storm(Answer(500), 0.02, operations=IDEMPOTENT)
        faults.storm(Reset(None, Direction.REQUEST), 0.02, operations=IDEMPOTENT)
        faults.storm(Reset(None, Direction.RESPONSE), 0.02, operations=IDEMPOTENT)
        faults.add(Delay(1, jitter_ms=5), times=None)
        changes = {"endpoint": proxy.address, "retries": _RETRIES}
        with closing(build_manager(settings.model_copy(update=changes))) as manager:
            yield manager

    @pytest.fixture
    def keys(self, settings: RsmSettings) -> StoredKeys:
        return everything_in(build_backend(settings), settings.prefix)


WEATHER: dict[str, Weather] = weather_of(IDEMPOTENT, "UploadPart") | {
    "a storm of 503": lambda faults: faults.storm(Answer(503), 1, for_ms=500),
    "many 500": lambda faults: faults.storm(Answer(500), 0.3, operations=IDEMPOTENT),
    "fetches reset in the middle": lambda faults: faults.add(
        Reset(2 * MIB, Direction.RESPONSE), operation="GetObject", times=3
    ),
}
SILENCES: dict[str, Weather] = {
    "parts answered by silence": lambda faults: faults.add(
        BlackHole(), operation="UploadPart", times=2
    ),
    "a fetch that falls silent": lambda faults: faults.add(
        Stall(MIB, Direction.RESPONSE), operation="GetObject"
    ),
}


@pytest.fixture(scope="module")
def one_proxy(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint, s3_operation, seed=9) as running:
        yield running


@pytest.fixture(scope="module")
def one_rsm(one_proxy: HttpProxy, s3: S3Endpoint) -> Iterator[ObjectRemoteStorageManager]:
    """One for all kinds of weather: to be ready takes more requests than any of them."""
    with rsm_behind(one_proxy, settings_for(s3), retries=_RETRIES) as manager:
        yield manager


@pytest.mark.parametrize("weather", WEATHER.values(), ids=list(WEATHER))
def test_a_segment_is_copied_read_and_deleted(
    one_rsm: ObjectRemoteStorageManager, one_proxy: HttpProxy, weather: Weather
) -> None:
    assert_survives(one_rsm, one_proxy, weather)


@pytest.mark.parametrize("weather", SILENCES.values(), ids=list(SILENCES))
def test_a_segment_is_copied_read_and_deleted_though_the_store_falls_silent(
    proxy: HttpProxy, settings: RsmSettings, weather: Weather
) -> None:
    """By RSM that soon asks again. In other weather it is patient: POSTs are not repeated."""
    behind = rsm_behind(proxy, settings, retries=_RETRIES, read_timeout_ms=SILENCE_MS)
    with behind as rsm:
        assert_survives(rsm, proxy, weather)


def test_a_part_may_take_longer_to_send_than_a_connection_to_come_about(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    """Eight seconds, and the connection has five. The system's own buffers, which take some of the
    part off RSM at once, do not make up for that."""
    proxy.faults.add(Throttle(4 * MIB), times=None)
    changes = {
        "endpoint": proxy.address,
        "part_size_bytes": 32 * MIB,
        "connect_timeout_ms": 5_000,
        "retries": 0,
    }
    files = Files(some_bytes(32 * MIB))
    with closing(build_manager(settings.model_copy(update=changes))) as rsm:
        copied(rsm, files)
