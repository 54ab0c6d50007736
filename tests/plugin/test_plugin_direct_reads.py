"""A broker reads its tier from the object store itself, and through RSM whatever that refuses."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from services.local.seaweedfs import S3Endpoint
from services.local.stack import ServiceProcess, rsm_settings
from tests.harness import moved_clock_process
from tests.harness.eventually import eventually
from tests.harness.faults import Answer, Cut, Direction, Fault
from tests.harness.http_proxy import HttpProxy
from tests.harness.variants import first_of
from tests.harness.world import World
from tests.plugin.deployment import Partition, tiering_broker
from tests.plugin.tiered_partition import DEADLINE_MS

pytestmark = pytest.mark.plugin

MIB = 1024 * 1024
SEGMENT_BYTES = 6 * MIB
RECORDS, RECORD_BYTES = 24, 700_000
LARGE_SEGMENT_BYTES, LARGE_RECORDS = 24 * MIB, 40
SECRET = "X-Amz-Signature"
EXPIRY_S = 60
"""How long a URL is valid: longer than a read of all takes on a busy machine."""
READ_DEADLINE_S = 240.0


@dataclass(frozen=True)
class Direct:
    """A tiered partition whose broker reads from the store by way of a proxy.

    Attributes:
        values: the records' values.
        clock: by how many seconds the clock of RSM's host is off.
    """

    partition: Partition
    values: list[bytes]
    rsm: ServiceProcess
    way_to_store: HttpProxy

    clock: Path

    def read(self) -> list[bytes | None]:
        """Read everything with a broker that holds nothing and has no URLs."""
        self.partition.deployment.broker.restart()
        self.way_to_store.forget_requests()
        return self.partition.values()

    def warnings(self) -> list[str]:
        lines = self.partition.deployment.broker_log()
        return [line for line in lines if "WARN" in line and "DirectReads" in line]

    def recoveries(self) -> list[str]:
        lines = self.partition.deployment.broker_log()
        return [line for line in lines if "is read directly again" in line]

    def urls(self) -> int:
        """Return how many URLs RSM has handed out."""
        with urlopen(f"http://{self.rsm.announcement.metrics}/metrics", timeout=10) as page:
            found = re.search(r"^sediment_rsm_direct_reads_total (.+)$", page.read().decode(), re.M)
        assert found is not None
        return int(float(found[1]))


@pytest.fixture(scope="module")
def way_to_store(s3: S3Endpoint) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def direct(
    jar: Path, services: World, way_to_store: HttpProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Direct]:
    """Segments of 6 MiB in the store, and an RSM that gives out the proxy's address."""
    settings = {
        **rsm_settings(services.s3, services.bucket, ""),
        "RSM_DIRECT_READS": "true",
        "RSM_DIRECT_READ_EXPIRY_S": str(EXPIRY_S),
        "RSM_PUBLIC_STORE_ENDPOINT": f"http://{way_to_store.address}",
    }
    directory = tmp_path_factory.mktemp("direct")
    clock = directory / "clock"
    clock.write_text("0")
    command = moved_clock_process.command(clock, "services.rsm")
    rsm = ServiceProcess("rsm", settings, directory / "rsm", command)
    rsm.start()
    try:
        directory = tmp_path_factory.mktemp("broker")
        own = {"rsm.config.direct.reads": "true"}
        with tiering_broker(jar, services, directory, rsm=rsm.address, settings=own) as deployment:
            partition = deployment.create_one("direct", SEGMENT_BYTES, local_retention_bytes="1")
            values = partition.produce(RECORDS, RECORD_BYTES)
            partition.wait_until_moved()
            yield Direct(partition, values, rsm, way_to_store, clock)
    finally:
        rsm.kill()


@pytest.fixture(autouse=True)
def heal(way_to_store: HttpProxy, direct: Direct) -> Iterator[None]:
    yield
    way_to_store.faults.clear()
    direct.clock.write_text("0")


def test_a_consumer_reads_from_the_store_with_one_url_a_segment(direct: Direct) -> None:
    segments, urls = direct.partition.finished(), direct.urls()
    assert direct.read() == direct.values
    read = [request for request in direct.way_to_store.requests if request.status == 206]
    assert len(read) >= len(segments)
    assert 0 < direct.urls() - urls <= len(segments)
    assert direct.warnings() == []


@pytest.mark.parametrize(
    "fault",
    first_of(
        [
            pytest.param(Cut(MIB + MIB // 2, Direction.RESPONSE), id="cut"),
            *(pytest.param(Answer(status), id=str(status)) for status in (403, 404, 503)),
        ],
        2,
    ),
)
def test_failed_direct_reads_are_streamed_and_logged_once(direct: Direct, fault: Fault) -> None:
    direct.way_to_store.faults.add(fault, times=None)
    assert direct.read() == direct.values
    assert direct.way_to_store.asked
    # A last chunk of a segment may be shorter than what is cut off: the store works again.
    assert 1 <= len(direct.warnings()) <= 1 + len(direct.recoveries())
    assert SECRET not in "\n".join(direct.partition.deployment.broker_log())


def test_unreachable_store_loses_no_record(direct: Direct) -> None:
    direct.way_to_store.refuse_connections()
    direct.way_to_store.cut_connections()
    try:
        assert direct.read() == direct.values
    finally:
        direct.way_to_store.accept_connections()
    assert len(direct.warnings()) == 1


def test_urls_of_a_clock_that_is_behind_are_refused_and_the_log_streamed(direct: Direct) -> None:
    """By less than 15 minutes: the store still answers RSM itself."""
    direct.clock.write_text(str(-10 * EXPIRY_S))
    assert direct.read() == direct.values
    refused = [request for request in direct.way_to_store.requests if request.status == 403]
    assert len(refused) > 0
    (warning,) = direct.warnings()
    assert "the clocks of RSM and store" in warning


def test_url_that_has_expired_is_not_used_by_a_slow_reader(direct: Direct) -> None:
    """The plugin asks for another one before the store refuses the first."""
    deployment, way = direct.partition.deployment, direct.way_to_store
    deployment.broker.restart()
    partition = deployment.create_one("slow", LARGE_SEGMENT_BYTES, local_retention_bytes="1")
    values = partition.produce(LARGE_RECORDS, RECORD_BYTES)
    partition.wait_until_moved()
    way.forget_requests()
    messages = deployment.cluster.read_through_faults(partition.name.topic, 0, READ_DEADLINE_S)
    read = [next(messages).value() for _ in range(3)]
    eventually(lambda: way.requests, DEADLINE_MS)
    first = way.requests[0]
    address = f"http://{way.address}{first.target}"
    eventually(lambda: is_refused(address), DEADLINE_MS, poll_ms=500)
    way.forget_requests()
    read += [message.value() for message in messages]
    assert read == values
    log, _, _ = first.target.partition("?")
    of_the_same_log = [r.target for r in way.requests if r.target.partition("?")[0] == log]
    assert len(of_the_same_log) > 0
    assert first.target not in of_the_same_log
    assert {request.status for request in way.requests} == {206}
    assert direct.warnings() == []


def is_refused(url: str) -> bool:
    try:
        urlopen(Request(url, headers={"Range": "bytes=0-0"}), timeout=10).close()
    except HTTPError as e:
        return e.code == 403
    return False


def test_damage_in_the_store_is_logged_and_never_given_to_kafka(direct: Direct) -> None:
    world = direct.partition.deployment.world
    second = direct.partition.finished()[1]
    keys = direct.partition.objects()[second.remote_log_segment_id.id]
    (key,) = (key for key in keys if key.endswith(".log"))
    store = world.s3.client()
    whole = store.get_object(world.bucket, key).data
    damaged = bytearray(whole)
    damaged[MIB + 7] ^= 1
    read: list[bytes | None] = []
    try:
        put(world, key, bytes(damaged))
        direct.partition.deployment.broker.restart()
        cluster = direct.partition.deployment.cluster
        messages = cluster.read_through_faults(direct.partition.name.topic, 0)
        for message in messages:
            read.append(message.value())
            if len(read) == second.start_offset + 1:
                break
        direct.partition.wait_until_logged("bytes 1048576 to 2097151 have crc32c")
    finally:
        put(world, key, whole)
    read += (message.value() for message in messages)
    assert read == direct.values


def put(world: World, key: str, data: bytes) -> None:
    world.s3.client().put_object(world.bucket, key, BytesIO(data), len(data))
