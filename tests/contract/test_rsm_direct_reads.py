"""Test OpenLogSegment over a real S3 store: what its URLs read, for how long, and refusals."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import pytest
import urllib3
from crc32c import crc32c
from prometheus_client import REGISTRY, generate_latest

from services.api.errors import (
    CorruptSegmentError,
    DirectReadRefusedError,
    InvalidRequestError,
    NotServedError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    ThrottledError,
)
from services.api.remote_storage_manager import OpenedLogSegment, RemoteStorageManager
from services.api.segments import RemoteLogSegmentMetadata
from services.common.log import JsonFormatter
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.backends.protocol import StorageBackend
from services.rsm.factory import build_manager
from services.rsm.layout import segment_keys
from services.rsm.servicer import add_to_server
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    a_segment,
    copied,
    fetched,
    some_bytes,
)
from tests.harness.eventually import eventually
from tests.harness.http_proxy import HttpProxy
from tests.harness.served import served
from tests.harness.stores import keys_in

# The last chunk is a short one.
SIZE = 2 * MIB + 1000
Building = Callable[..., RemoteStorageManager]


@pytest.fixture(params=["in process", pytest.param("gRPC", marks=pytest.mark.deep)])
def build(request: pytest.FixtureRequest, settings: RsmSettings) -> Iterator[Building]:
    """Return a function that builds an RSM with direct reads and more settings."""
    with ExitStack() as cleanup:

        def build(**changes: Any) -> RemoteStorageManager:
            manager = cleanup.enter_context(
                closing(
                    build_manager(settings.model_copy(update={"direct_reads": True, **changes}))
                )
            )
            if request.param == "in process":
                return manager

            def add(server: grpc.Server) -> None:
                add_to_server(manager, server)

            channel, address = cleanup.enter_context(
                served(add, "tieredstorage.v1.RemoteStorageManager")
            )
            return RemoteStorageManagerClient(channel, address)

        yield build


@pytest.fixture
def rsm(build: Building) -> RemoteStorageManager:
    return build()


@pytest.fixture
def files() -> Files:
    return Files(some_bytes(SIZE))


def get(url: str, **headers: str) -> urllib3.BaseHTTPResponse:
    return urllib3.request("GET", url, headers=headers, retries=False)


def read_chunk(opened: OpenedLogSegment, number: int) -> bytes:
    """Read and verify one chunk, as a client does."""
    size = opened.log.chunk_bytes
    last = min((number + 1) * size, opened.log.size_bytes) - 1
    answer = get(opened.url, Range=f"bytes={number * size}-{last}")
    assert answer.status == 206
    if crc32c(answer.data) != opened.log.chunk_crc32c[number]:
        raise CorruptSegmentError(f"chunk {number}")
    return answer.data


def log_key(settings: RsmSettings, backend: StorageBackend) -> str:
    (key,) = (key for key in keys_in(backend, settings.prefix) if key.endswith(".log"))
    return key


def test_the_url_reads_exactly_the_log(rsm: RemoteStorageManager, files: Files) -> None:
    opened = rsm.open_log_segment(copied(rsm, files))
    assert get(opened.url).data == files.log
    assert opened.log.whole.size_bytes == SIZE
    assert opened.valid_for_ms == 300_000


def test_each_chunk_is_a_range_that_has_its_crc(rsm: RemoteStorageManager, files: Files) -> None:
    opened = rsm.open_log_segment(copied(rsm, files))
    chunks = range(len(opened.log.chunk_crc32c))
    assert b"".join(read_chunk(opened, number) for number in chunks) == files.log
    assert len(chunks) == 3


def test_the_url_reads_no_other_object_and_writes_nothing(
    rsm: RemoteStorageManager, files: Files, settings: RsmSettings, backend: StorageBackend
) -> None:
    first = copied(rsm, files)
    opened = rsm.open_log_segment(first)
    key = log_key(settings, backend)
    for other in (f"{key}.other", segment_keys(settings.prefix, first).manifest, ""):
        assert get(opened.url.replace(key, other)).status == 403
    for method in ("PUT", "DELETE", "POST"):
        answer = urllib3.request(method, opened.url, body=b"other", retries=False)
        assert answer.status in (400, 403, 405)  # 400: what MinIO says to a POST
    assert fetched(rsm, first) == files.log


def test_a_damaged_chunk_is_found_by_the_clients_check_and_the_others_are_read(
    rsm: RemoteStorageManager, files: Files, settings: RsmSettings, backend: StorageBackend
) -> None:
    opened = rsm.open_log_segment(copied(rsm, files))
    damaged = bytearray(files.log)
    damaged[MIB + 7] ^= 1
    backend.put(log_key(settings, backend), bytes(damaged))
    with pytest.raises(CorruptSegmentError, match="chunk 1"):
        read_chunk(opened, 1)
    assert read_chunk(opened, 0) + read_chunk(opened, 2) == files.log[:MIB] + files.log[2 * MIB :]


def test_an_empty_log_is_opened(rsm: RemoteStorageManager) -> None:
    opened = rsm.open_log_segment(copied(rsm, Files(b"")))
    assert (opened.log.chunk_crc32c, get(opened.url).data) == ((), b"")


def test_a_url_expires(backend: StorageBackend, settings: RsmSettings) -> None:
    key = f"{settings.prefix}object"
    backend.put(key, b"content")
    signed = backend.presign(key, 1)
    assert signed is not None
    assert get(signed.url).data == b"content"
    eventually(lambda: get(signed.url).status == 403, deadline_ms=20_000)


def test_the_setting_bounds_the_time(build: Building, files: Files) -> None:
    rsm = build(direct_read_expiry_s=10)
    opened = rsm.open_log_segment(copied(rsm, files))
    assert opened.valid_for_ms == 10_000
    assert parse_qs(urlsplit(opened.url).query)["X-Amz-Expires"] == ["10"]


def test_the_url_has_the_public_address_and_works_there(
    build: Building, files: Files, proxy: HttpProxy
) -> None:
    rsm = build(public_store_endpoint=f"http://{proxy.address}")
    segment = copied(rsm, files)
    proxy.forget_requests()
    opened = rsm.open_log_segment(segment)
    assert opened.url.startswith(f"http://{proxy.address}/")
    assert proxy.requests == []
    assert get(opened.url).data == files.log


def test_opening_is_one_request(build: Building, files: Files, proxy: HttpProxy) -> None:
    rsm = build(endpoint=proxy.address)
    segment = copied(rsm, files)
    proxy.forget_requests()
    rsm.open_log_segment(segment)
    rsm.open_log_segment(segment)
    assert len(proxy.requests) == 2


def test_without_custom_metadata_the_manifest_names_the_log(
    rsm: RemoteStorageManager, files: Files
) -> None:
    segment = replace(copied(rsm, files), custom_metadata=None)
    assert get(rsm.open_log_segment(segment).url).data == files.log


def test_a_segment_that_is_not_there_is_not_found(rsm: RemoteStorageManager, files: Files) -> None:
    segment = copied(rsm, files)
    rsm.delete_log_segment_data(segment)
    for missing in (segment, a_segment()):
        with pytest.raises(RemoteResourceNotFoundError):
            rsm.open_log_segment(missing)


def test_another_manifest_is_corrupt(
    rsm: RemoteStorageManager, files: Files, settings: RsmSettings, backend: StorageBackend
) -> None:
    segment = copied(rsm, files)
    backend.put(segment_keys(settings.prefix, segment).manifest, b"{}")
    with pytest.raises(CorruptSegmentError):
        rsm.open_log_segment(segment)


def test_a_segment_of_a_location_without_urls_is_refused_by_name(
    build: Building, files: Files, tmp_path: Path
) -> None:
    directory = tmp_path / "old"
    directory.mkdir()
    listed = tmp_path / "locations.toml"
    listed.write_text(
        f'[[location]]\nid = 7\nbackend = "filesystem"\ndirectory = "{directory}"\nprefix = ""\n',
    )
    old = RsmSettings(backend="filesystem", directory=directory, location_id=7)
    with closing(build_manager(old)) as before:
        segment = copied(before, files)
    with pytest.raises(DirectReadRefusedError, match="location 7"):
        build(locations_file=listed).open_log_segment(segment)


def test_listed_location_has_its_own_public_endpoint(
    build: Building, files: Files, settings: RsmSettings, tmp_path: Path
) -> None:
    with closing(build_manager(settings)) as before:
        segment = copied(before, files)
    listed = tmp_path / "locations.toml"
    listed.write_text(
        f'[[location]]\nid = 1\nbackend = "s3"\nendpoint = "{settings.endpoint}"\n'
        f'region = "{settings.region}"\nbucket = "{settings.bucket}"\nsecure = false\n'
        f'prefix = "{settings.prefix}"\npublic_endpoint = "https://store.example:9000"\n'
    )
    rsm = build(locations_file=listed, location_id=2, prefix="other/")
    assert rsm.open_log_segment(segment).url.startswith("https://store.example:9000/")


def test_malformed_metadata_is_refused_with_its_field(rsm: RemoteStorageManager) -> None:
    with pytest.raises(InvalidRequestError, match=r"metadata\.custom_metadata"):
        rsm.open_log_segment(replace(a_segment(), custom_metadata=b"\x07"))


def test_a_url_is_charged_to_the_fetch_rate_and_never_waits(build: Building, files: Files) -> None:
    rsm = build(fetch_rate_bytes_per_s=SIZE // 30)
    segment = copied(rsm, files)
    rsm.open_log_segment(segment)
    with pytest.raises(ThrottledError, match=r"retry in \d+ s"):
        rsm.open_log_segment(segment)


def test_the_url_is_in_no_log_no_metric_and_no_error(
    build: Building, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rsm = build(fetch_rate_bytes_per_s=SIZE // 30)
    segment = copied(rsm, files)
    opened = rsm.open_log_segment(segment)
    with pytest.raises(ThrottledError) as caught:
        rsm.open_log_segment(segment)
    lines = [JsonFormatter().format(record) for record in caplog.records]
    seen = "\n".join([*lines, generate_latest().decode(), repr(opened), repr(caught.value)])
    signature = parse_qs(urlsplit(opened.url).query)["X-Amz-Signature"][0]
    assert signature in opened.url
    assert [text for text in (signature, "X-Amz-Signature") if text in seen] == []


def test_handed_out_url_is_logged_with_its_actor_and_counted(
    rsm: RemoteStorageManager, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    segment = copied(rsm, files)
    before = [counted(name) for name in ("reads", "read_bytes")]
    rsm.open_log_segment(segment)
    (line,) = (r for r in caplog.records if r.name == "services.rsm.direct")
    assert str(segment.remote_log_segment_id) in line.getMessage()
    assert vars(line)["actor"] in line.getMessage()
    assert vars(line)["valid_s"] == 300
    assert [counted(name) for name in ("reads", "read_bytes")] == [before[0] + 1, before[1] + SIZE]


def counted(name: str) -> float:
    return REGISTRY.get_sample_value(f"sediment_rsm_direct_{name}_total") or 0.0


def test_direct_reads_need_an_s3_store(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="RSM_DIRECT_READS=true needs RSM_BACKEND=s3"):
        RsmSettings(backend="filesystem", directory=tmp_path, direct_reads=True)


@pytest.mark.parametrize(
    "address", ["store:9000", "ftp://store", "https://store/path", "https://user@store", "https://"]
)
def test_a_public_address_is_a_url_without_a_path(settings: RsmSettings, address: str) -> None:
    values = settings.model_dump() | {"public_store_endpoint": address}
    with pytest.raises(ValueError, match="public_store_endpoint"):
        RsmSettings(**values)


def test_while_the_mode_is_off_nothing_is_handed_out(build: Building, files: Files) -> None:
    rsm = build(direct_reads=False)
    segment: RemoteLogSegmentMetadata = copied(rsm, files)
    with pytest.raises(RemoteStorageError) as caught:
        rsm.open_log_segment(segment)
    assert type(caught.value) is NotServedError
