"""Test RSM's probe of a store, which precedes its use for segments."""

import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pytest
from minio import time
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_s3

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.common.log import JsonFormatter
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_locations, build_manager, build_start_up
from services.rsm.probe import REQUIRED, WITHOUT, Capability, Outcome, ProbeReport
from services.rsm.settings import RsmSettings
from services.rsm.startup import StartUp
from tests.contract.remote_storage_manager_contract import Files, StoredKeys, copied, fetched
from tests.contract.rsm_over_s3 import everything_in, settings_for
from tests.harness.faults import Answer, Fault
from tests.harness.http_messages import Head, s3_operation
from tests.harness.http_proxy import HttpProxy

pytestmark = pytest.mark.deep

IN_S3_ONLY = {
    Capability.RANGE_PAST_THE_END,
    Capability.CHECKSUMS,
    Capability.ETAGS,
}


class ForgetfulProxy(HttpProxy):
    """A proxy to a store that does not know one request header, or refuses it.

    The header is removed, and the rest is signed again with the keys of the store behind.
    """

    def __init__(self, s3: S3Endpoint) -> None:
        super().__init__(s3.endpoint, s3_operation)
        self._s3 = s3
        self.forgotten = ""
        self.refused = ""

    def _fault_for(self, request: Head) -> Fault | None:
        if self.refused in request.headers:
            return Answer(501)
        return super()._fault_for(request)

    def _rewritten(self, head: Head) -> Head:
        if self.forgotten not in head.headers:
            return head
        kept = {name: text for name, text in head.headers.items() if name != self.forgotten}
        signed = {k: v for k, v in kept.items() if k == "host" or k.startswith("x-amz-")}
        date = time.utcnow()
        signature = sign_v4_s3(
            method=head.method,
            url=urlsplit(f"http://{kept['host']}{head.target}"),
            region=self._s3.region,
            headers={**signed, "x-amz-date": time.to_amz_date(date)},
            credentials=Credentials(self._s3.access_key, self._s3.secret_key),
            content_sha256=kept["x-amz-content-sha256"],
            date=date,
        )
        fields = {**kept, **{name.lower(): str(text) for name, text in signature.items()}}
        lines = [head.start_line, *(f"{name}: {text}" for name, text in fields.items())]
        return replace(head, raw="\r\n".join([*lines, "", ""]).encode("latin-1"), headers=fields)

    def _send_request(
        self, request: Head, from_client: BinaryIO, server: socket.socket, fault: Fault | None
    ) -> None:
        super()._send_request(self._rewritten(request), from_client, server, fault)


@dataclass(frozen=True)
class ProbedStore:
    """A store behind the proxy, and the settings by which RSM uses it through the proxy."""

    proxy: ForgetfulProxy
    settings: RsmSettings
    start_up: StartUp
    stored_keys: StoredKeys


@pytest.fixture
def store(s3: S3Endpoint) -> Iterator[ProbedStore]:
    with ForgetfulProxy(s3) as proxy:
        beside = settings_for(s3, {"deployment_id": "ours"})
        settings = beside.model_copy(update={"endpoint": proxy.address})
        start_up = build_start_up(settings, build_locations(settings))
        keys = everything_in(build_backend(beside), settings.prefix)
        yield ProbedStore(proxy, settings, start_up, keys)


def outcomes(report: ProbeReport) -> dict[Capability, Outcome]:
    return {finding.capability: finding.outcome for finding in report.findings}


def shortcomings(report: ProbeReport) -> dict[Capability, Outcome]:
    found = outcomes(report).items()
    return {capability: outcome for capability, outcome in found if outcome is not Outcome.OK}


def test_a_real_store_can_do_everything_and_nothing_is_left_in_it(store: ProbedStore) -> None:
    assert outcomes(store.start_up.inspect()) == dict.fromkeys(Capability, Outcome.OK)
    assert not store.stored_keys()


def test_a_directory_can_do_everything_that_concerns_it(tmp_path: Path) -> None:
    settings = RsmSettings(backend="filesystem", directory=tmp_path, prefix="tier/")
    report = build_start_up(settings, build_locations(settings)).inspect()
    assert outcomes(report) == dict.fromkeys(set(Capability) - IN_S3_ONLY, Outcome.OK)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems have none: no copy would ever count."""

    def refuse(source: object, target: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    settings = RsmSettings(backend="filesystem", directory=tmp_path, deployment_id="ours")
    report = build_start_up(settings, build_locations(settings)).inspect()
    assert [finding.capability for finding in report.refused] == [Capability.IF_NONE_MATCH]
    assert not report.degraded
    assert report.as_json()["capabilities"]["if_none_match"]["required"] is True
    with (
        closing(build_manager(settings)) as rsm,
        pytest.raises(RemoteStorageError, match=r"cannot keep segments: .* by a hard link.*EPERM"),
    ):
        rsm.check()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_every_capability_is_required_or_has_a_stated_cost() -> None:
    assert {*REQUIRED, *WITHOUT} == {*Capability}
    assert not REQUIRED & WITHOUT.keys()


@pytest.mark.parametrize(
    ("forgotten", "found"),
    [
        # What was written in parts is read back by a range.
        ("range", {Capability.RANGES, Capability.RANGE_PAST_THE_END, Capability.MULTIPART}),
        ("if-none-match", {Capability.IF_NONE_MATCH}),
        ("x-amz-checksum-crc32c", {Capability.CHECKSUMS}),
    ],
)
def test_a_header_that_a_store_ignores_is_found_out(
    store: ProbedStore, forgotten: str, found: set[Capability]
) -> None:
    store.proxy.forgotten = forgotten
    assert set(shortcomings(store.start_up.inspect())) == found
    assert not store.stored_keys()


@pytest.mark.parametrize(
    ("operation", "refused"),
    [
        ("CreateMultipartUpload", {Capability.MULTIPART, Capability.UPLOAD_LISTING}),
        ("UploadPart", {Capability.MULTIPART}),
        ("CompleteMultipartUpload", {Capability.MULTIPART}),
        ("DeleteObjects", {Capability.MULTI_DELETE}),
        ("PutObject", REQUIRED - {Capability.MULTIPART, Capability.UPLOAD_LISTING}),
        ("ListMultipartUploads", {Capability.UPLOAD_LISTING}),
        ("ListObjectsV2", {Capability.LISTING}),
    ],
)
def test_a_request_that_a_store_refuses_is_found_out_and_nothing_is_left(
    store: ProbedStore, operation: str, refused: set[Capability]
) -> None:
    store.proxy.faults.add(Answer(501), operation=operation, times=None)
    report = store.start_up.inspect()
    assert {finding.capability for finding in report.refused} == refused
    assert shortcomings(report)
    assert not store.stored_keys()


@pytest.mark.parametrize(
    ("operation", "skip"),
    [
        ("PutObject", 0),
        ("PutObject", 1),
        ("PutObject", 5),
        pytest.param("GetObject", 1, id="the first after the marker"),
        ("GetObject", 3),
        ("ListObjectsV2", 0),
        ("CreateMultipartUpload", 0),
        ("UploadPart", 1),
        ("CompleteMultipartUpload", 0),
        ("ListMultipartUploads", 1),
        ("DeleteObjects", 0),
    ],
)
def test_a_probe_that_is_cut_off_is_retriable_and_leaves_nothing(
    store: ProbedStore, operation: str, skip: int
) -> None:
    store.proxy.faults.add(Answer(503), operation=operation, skip=skip)
    with pytest.raises(RetriableRemoteStorageError):
        store.start_up.inspect()
    assert not store.stored_keys()


def test_a_store_without_ranges_keeps_rsm_from_serving(store: ProbedStore) -> None:
    store.proxy.forgotten = "range"
    with closing(build_manager(store.settings)) as rsm:
        with pytest.raises(RemoteStorageError, match=rf"{store.proxy.address} .*ranges is missing"):
            rsm.check()
        with pytest.raises(RetriableRemoteStorageError, match="ranges is missing"):
            copied(rsm, Files(b"log"))
    assert not store.stored_keys()


def test_a_store_without_if_none_match_is_used_and_warned_of_once(
    store: ProbedStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.proxy.forgotten = "if-none-match"
    with caplog.at_level(logging.WARNING), closing(build_manager(store.settings)) as rsm:
        rsm.check()
        rsm.check()
        assert fetched(rsm, copied(rsm, Files(b"log"))) == b"log"
    (warning,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert "if_none_match is missing" in warning
    assert WITHOUT[Capability.IF_NONE_MATCH] in warning


def test_a_store_that_refuses_if_none_match_is_used_without_it(store: ProbedStore) -> None:
    store.proxy.refused = "if-none-match"
    with closing(build_manager(store.settings)) as rsm:
        rsm.check()
        metadata = copied(rsm, Files(b"log"))
        assert fetched(rsm, metadata) == b"log"
        rsm.delete_log_segment_data(replace(metadata, custom_metadata=None))
    assert store.stored_keys() == [f"{store.settings.prefix}.sediment"]


def test_without_a_probe_a_refused_if_none_match_is_found_out_and_leaves_nothing(
    store: ProbedStore,
) -> None:
    store.proxy.refused = "if-none-match"
    backend, key = build_backend(store.settings), f"{store.settings.prefix}key"
    assert backend.put_if_absent(key, b"first")
    assert not backend.put_if_absent(key, b"second")
    assert backend.get(key) == b"first"
    assert store.stored_keys() == [key]


def test_a_question_that_breaks_off_leaves_no_object(store: ProbedStore) -> None:
    store.proxy.faults.add(Answer(503), operation="PutObject", skip=1)
    with pytest.raises(RetriableRemoteStorageError):
        build_backend(store.settings).put_if_absent(f"{store.settings.prefix}key", b"first")
    assert not store.stored_keys()


def test_an_upload_begun_to_try_the_store_that_cannot_be_ended_hides_nothing(
    store: ProbedStore,
) -> None:
    store.proxy.faults.add(Answer(403), operation="AbortMultipartUpload", times=None)
    backend = build_backend(store.settings)
    store.proxy.faults.add(Answer(503), operation="ListMultipartUploads")
    with pytest.raises(RetriableRemoteStorageError, match="503"):
        list(backend.list_uploads(store.settings.prefix))
    list(backend.list_uploads(store.settings.prefix))
    list(backend.list_uploads(store.settings.prefix))
    assert store.proxy.counts()["CreateMultipartUpload"] == 2


def test_the_report_is_one_line_of_json_with_a_field_for_each_capability(
    store: ProbedStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), closing(build_manager(store.settings)) as rsm:
        rsm.check()
    (record,) = (r for r in caplog.records if r.getMessage().startswith("probed the store"))
    line = json.loads(JsonFormatter().format(record))
    assert line["usable"] is True
    assert set(line["capabilities"]) == {capability.value for capability in Capability}
    ranges = line["capabilities"]["ranges"]
    assert (ranges["outcome"], ranges["required"], ranges["detail"]) == ("ok", True, "")
    assert ranges["took_ms"] > 0


def test_without_a_marker_to_wait_for_the_probe_is_awaited(store: ProbedStore) -> None:
    unnamed = store.settings.model_copy(update={"deployment_id": ""})
    with closing(build_manager(unnamed, checked_first=True)) as rsm:
        with pytest.raises(RetriableRemoteStorageError, match="its store is not checked yet"):
            copied(rsm, Files(b"log"))
        assert not store.stored_keys()
        rsm.check()
        assert fetched(rsm, copied(rsm, Files(b"log"))) == b"log"


@pytest.mark.parametrize("deployment_id", ["", "ours"])
def test_once_passed_a_check_is_one_request_and_a_call_adds_none(
    store: ProbedStore, deployment_id: str
) -> None:
    changed = store.settings.model_copy(update={"deployment_id": deployment_id})
    with closing(build_manager(changed)) as rsm:
        rsm.check()
        store.proxy.forget_requests()
        store.proxy.faults.add(Answer(503), operation="GetObject")
        with pytest.raises(RetriableRemoteStorageError):
            rsm.check()
        rsm.check()
        assert store.proxy.counts() == {"GetObject": 2}
        store.proxy.forget_requests()
        copied(rsm, Files(b"log"))
        assert store.proxy.counts() == {"PutObject": 3}


def test_a_refused_store_is_tried_again_once_it_was_away(store: ProbedStore) -> None:
    store.proxy.forgotten = "range"
    with closing(build_manager(store.settings)) as rsm:
        with pytest.raises(RemoteStorageError, match="ranges"):
            rsm.check()
        store.proxy.forget_requests()
        store.proxy.forgotten = ""
        with pytest.raises(RemoteStorageError, match="ranges"):
            rsm.check()
        assert "PutObject" not in store.proxy.counts()
        store.proxy.faults.add(Answer(503), operation="GetObject")
        with pytest.raises(RetriableRemoteStorageError):
            rsm.check()
        rsm.check()
    assert store.stored_keys() == [f"{store.settings.prefix}.sediment"]


def test_a_probe_that_is_cut_off_runs_again_at_the_next_check(store: ProbedStore) -> None:
    store.proxy.faults.add(Answer(503), operation="CreateMultipartUpload", times=2)
    for _ in range(2):
        with pytest.raises(RetriableRemoteStorageError):
            store.start_up.check()
        with pytest.raises(RetriableRemoteStorageError, match="not ready"):
            store.start_up.require_open()
    store.start_up.check()
    store.start_up.require_open()
