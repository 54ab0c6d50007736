"""Test the console's answers over HTTP, beside a real RLMM and a real RLM."""

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.api.ids import TopicIdPartition, uuid_to_text
from services.api.operations import Anomaly, AnomalyKind, RunCounts, RunKind, RunOutcome, ToolRun
from services.api.partitions import OffsetGap
from services.api.remote_storage_manager import IndexType
from services.api.roles import Role
from services.common.client_security import ClientSecurity
from services.common.console_settings import ConsoleSettings
from services.common.release import release
from services.console import segment_life
from services.console.server import MAX_CONNECTIONS
from services.rpc.server.policy import policy_file
from services.rpc.tls import ReloadedTls, TlsFiles
from services.rsm.layout import CustomMetadata
from services.views.endpoints import ServiceAddresses
from tests.contract.rlmm.segments import (
    DELETE_STARTED,
    FINISHED,
    MARKED,
    add,
    finished,
    move,
    put_deletion,
    segment,
    tail,
)
from tests.harness import served_fixtures
from tests.harness.console import ServedConsole, serving_console
from tests.harness.holds import hold
from tests.harness.processes import RlmmProcess
from tests.harness.retained_log import hourly_log
from tests.harness.secured import Deployment, spiffe
from tests.harness.served import served_rlm
from tests.harness.ship_stack import running_stack
from tests.harness.tier import a_topic
from tests.unit.rlm.kafka_bytes import NAME

rlmm = served_fixtures.rlmm

AWAY = "127.0.0.1:9"


@pytest.fixture
def console(rlmm: RlmmProcess) -> Iterator[ServedConsole]:
    with serving_console(ServiceAddresses(rlmm=rlmm.address)) as made:
        yield made


def of(tp: TopicIdPartition, **more: object) -> dict[str, Any]:
    topic_id = uuid_to_text(tp.topic_id)
    return {"topic": tp.topic, "topic_id": topic_id, "partition": tp.partition, **more}


def test_topics_have_their_sizes_and_settings(rlmm: RlmmProcess, console: ServedConsole) -> None:
    orders, audit = a_topic("orders", 2), a_topic("audit", 1)[0]
    finished(rlmm.client, orders[0], 0, 9, segment_size_in_bytes=1_000)
    finished(rlmm.client, orders[1], 0, 9, segment_size_in_bytes=500)
    finished(rlmm.client, audit, 0, 9, segment_size_in_bytes=5)
    settings = {"retention.ms": "3600000"}
    rlmm.client.put_topic_config(orders[0].topic_id, settings, now=True)
    hold(rlmm.client, orders[0], partition=0)
    found = console.get("/api/topics")
    assert [topic["topic"] for topic in found["topics"]] == ["orders", "audit"]
    first = found["topics"][0]
    assert (first["partitions"], first["segments"], first["tier_bytes"]) == (2, 2, 1_500)
    assert (first["settings"], first["is_on_hold"], first["local_bytes"]) == (settings, True, None)
    assert found["sums"]["tier_bytes"] == 1_505
    assert (found["total"], found["has_rlm"]) == (2, False)
    named = console.get("/api/topics", search="aud", order="name")
    assert ([topic["topic"] for topic in named["topics"]], named["total"]) == (["audit"], 1)
    second = console.get("/api/topics", offset=1, limit=1)
    assert [topic["topic"] for topic in second["topics"]] == ["audit"]


def test_the_partitions_of_a_topic_come_in_pages(rlmm: RlmmProcess, console: ServedConsole) -> None:
    partitions = a_topic("orders", 3)
    for tp in partitions:
        finished(rlmm.client, tp, 0, 9)
    topic = {key: of(partitions[0])[key] for key in ("topic", "topic_id")}
    for offset, expected in ((0, [0, 1]), (2, [2]), (3, [])):
        found = console.get("/api/partitions", **topic, offset=offset, limit=2)
        assert [each["partition"] for each in found["partitions"]] == expected
        assert (found["offset"], found["total"]) == (offset, 3)


def test_a_timeline_has_segments_of_each_state_and_what_is_missing(
    rlmm: RlmmProcess, console: ServedConsole
) -> None:
    (tp,) = a_topic("orders", 1)
    finished(rlmm.client, tp, 0, 9, {0: 0}, max_timestamp_ms=1_000)
    finished(rlmm.client, tp, 10, 19, {0: 10, 3: 15}, max_timestamp_ms=2_000)
    finished(rlmm.client, tp, 30, 39, {3: 30}, max_timestamp_ms=1_500)
    add(rlmm.client, segment(tp, 40, 49, {3: 40}))
    gone = finished(rlmm.client, tp, 50, 59, {3: 50})
    move(rlmm.client, gone, DELETE_STARTED)
    rlmm.client.record_gap(tp, OffsetGap(60, 69), 1)
    found = console.get("/api/timeline", **of(tp))
    shown = [(i["start"], i["end"], i["state"], i["count"]) for i in found["items"]]
    assert shown == [
        (0, 9, "COPY_SEGMENT_FINISHED", 1),
        (10, 19, "COPY_SEGMENT_FINISHED", 1),
        (30, 39, "COPY_SEGMENT_FINISHED", 1),
        (40, 49, "COPY_SEGMENT_STARTED", 1),
        (50, 59, "DELETE_SEGMENT_STARTED", 1),
    ]
    assert [(i["epoch_first"], i["epoch_last"]) for i in found["items"][:3]] == [
        (0, 0),
        (0, 3),
        (3, 3),
    ]
    assert found["holes"] == [{"start": 20, "end": 29}]
    assert found["gaps"] == [{"start": 60, "end": 69, "kind": "LOST_BEFORE_COPY"}]
    assert (found["whole_from"], found["whole_to"], found["segments"]) == (0, 69, 5)
    part = console.get("/api/timeline", **of(tp, **{"from": 12, "to": 35}))
    assert [i["start"] for i in part["items"]] == [10, 30]
    by_time = console.get("/api/timeline", **of(tp, axis="time"))
    assert [(i["first"], i["last"]) for i in by_time["items"][:3]] == [
        (1_000, 1_000),
        (1_000, 2_000),
        (2_000, 2_000),
    ]
    assert (by_time["whole_from"], by_time["whole_to"]) == (1_000, 2_000)


def test_a_tail_is_named(rlmm: RlmmProcess, console: ServedConsole) -> None:
    (tp,) = a_topic("orders", 1)
    finished(rlmm.client, tp, 0, 9)
    last = add(rlmm.client, tail(tp, 10, 14), FINISHED)
    found = console.get("/api/timeline", **of(tp))
    assert [i["tail"] for i in found["items"]] == [False, True]
    life = console.get("/api/segment", **of(tp, id=uuid_to_text(last.remote_log_segment_id.id)))
    assert life["segment"]["tail"] is True
    finished(rlmm.client, tp, 10, 29)
    assert console.get("/api/timeline", **of(tp))["holes"] == []


@pytest.mark.deep
def test_many_segments_are_joined_into_few_bins(rlmm: RlmmProcess, console: ServedConsole) -> None:
    (tp,) = a_topic("orders", 1)
    for number in range(20):
        start = number * 10 + (1_000 if number >= 10 else 0)
        finished(rlmm.client, tp, start, start + 9, {number // 15: start}, segment_size_in_bytes=7)
    add(rlmm.client, segment(tp, 1_200, 1_209, {1: 1_200}))
    found = console.get("/api/timeline", **of(tp, bins=3))
    assert (found["segments"], found["shown_segments"]) == (21, 21)
    assert [(i["start"], i["end"], i["count"], i["state"]) for i in found["items"]] == [
        (0, 99, 10, "COPY_SEGMENT_FINISHED"),
        (1_100, 1_199, 10, "COPY_SEGMENT_FINISHED"),
        (1_200, 1_209, 1, "COPY_SEGMENT_STARTED"),
    ]
    second = found["items"][1]
    assert (second["bytes"], second["epoch_first"], second["epoch_last"]) == (70, 0, 1)
    # Of a bin with one segment the segment can be opened.
    assert [i["id"] is None for i in found["items"]] == [True, True, False]


def test_a_segment_has_its_objects_digest_events_and_the_reason_why_it_is_kept(
    rlmm: RlmmProcess, console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tp,) = a_topic("orders", 1)
    sizes = dict.fromkeys(IndexType, 8)
    copy = CustomMetadata(2, "00ff00ff00ff00ff", 1_048_576, sizes, bytes(range(16)))
    made = add(rlmm.client, segment(tp, 0, 9))
    move(rlmm.client, made, FINISHED, custom_metadata=copy.to_bytes())
    segment_id = uuid_to_text(made.remote_log_segment_id.id)
    life = console.get("/api/segment", **of(tp, id=segment_id))
    assert life["segment"]["state"] == "COPY_SEGMENT_FINISHED"
    assert [event["to_state"] for event in life["events"]] == [
        "COPY_SEGMENT_STARTED",
        "COPY_SEGMENT_FINISHED",
    ]
    objects = life["objects"]
    assert (objects["location_id"], objects["manifest_sha256_prefix"]) == (
        2,
        bytes(range(16)).hex(),
    )
    name = f"{tp.topic_id.hex}/0/{0:020}-{made.remote_log_segment_id.id.hex}"
    assert [each["key"] for each in objects["objects"]] == [
        f"{name}.00ff00ff00ff00ff.log",
        f"{name}.00ff00ff00ff00ff.indexes",
        f"{name}.manifest",
    ]
    assert "no leader has reported" in life["verdict"]
    monkeypatch.setattr(segment_life, "MAX_EXPLAINED", 0)
    life = console.get("/api/segment", **of(tp, id=segment_id))
    assert f"sediment explain orders-0 -- {segment_id}" in life["verdict"]


def test_what_a_sweep_and_a_scrub_reported_is_shown(
    rlmm: RlmmProcess, console: ServedConsole
) -> None:
    (tp,) = a_topic("orders", 1)
    bad = finished(rlmm.client, tp, 0, 9).remote_log_segment_id.id
    anomaly = Anomaly(AnomalyKind.CORRUPT_OBJECT, tp.topic_id, 0, bad, detail="<b>crc32c</b>")
    rlmm.client.report_anomalies([anomaly], "run")
    run = ToolRun(RunKind.REMOVAL, "run-1", RunOutcome.PARTIAL)
    rlmm.client.report_tool_run(run, [RunCounts()])
    rlmm.client.report_tool_run(ToolRun(RunKind.SCRUB, "run-2"), [RunCounts(tp.topic_id, 1)])
    [seen] = console.get("/api/anomalies")["anomalies"]
    assert (seen["topic"], seen["kind"]) == ("orders", "CORRUPT_OBJECT")
    assert seen["detail"] == "<b>crc32c</b>"
    assert console.get("/api/anomalies", kind="ORPHAN_OBJECTS")["anomalies"] == []
    shown = console.get("/api/sweeps")
    [sweep], [scrub] = shown["sweeps"], shown["checks"]
    assert (scrub["kind"], scrub["topics"], scrub["segments"]) == ("SCRUB", ["orders"], 1)
    assert (sweep["kind"], sweep["outcome"], sweep["run_id"]) == ("REMOVAL", "PARTIAL", "run-1")
    lines = {line["what"]: line["severity"] for line in console.get("/api/health")["lines"]}
    assert (lines["anomalies"], lines["sweeps"], lines["tier"]) == ("CRITICAL", "WARNING", "OK")


@pytest.mark.deep
def test_local_logs_are_those_of_the_rlms_and_one_that_is_away_is_named(
    rlmm: RlmmProcess, database_url: str, tmp_path: Path, log_dir: Path
) -> None:
    hourly_log(log_dir)
    with running_stack(database_url, tmp_path / "own") as stack:
        stack.ship(log_dir)
        with served_rlm(stack.rlm(log_dir)) as (_, address):
            addresses = ServiceAddresses(rlmm=rlmm.address, rlm=f"{address},{AWAY}")
            with serving_console(addresses) as console:
                [topic] = console.get("/api/topics")["topics"]
                found = console.get("/api/timeline", **of(NAME))
                services = console.get("/api/health")["services"]
    assert topic["local_bytes"] > 0
    assert (topic["lag_segments"], found["local"]["log_start_offset"]) == (0, 0)
    assert found["whole_to"] == found["local"]["log_end_offset"]
    assert list(found["unread"]) == [AWAY]
    severities = [(each["service"], each["severity"]) for each in services]
    assert severities == [("rsm", "UNKNOWN"), ("rlmm", "OK"), ("rlm", "OK"), ("rlm", "CRITICAL")]


@pytest.mark.parametrize(
    ("path", "parameters", "code", "text"),
    [
        ("/api/timeline", {"topic": "orders"}, 400, "topic_id: is missing"),
        ("/api/timeline", {"topic_id": "x"}, 400, "topic_id: must be 22 characters"),
        ("/api/timeline", {"partition": "-1"}, 400, "partition: must be a whole number"),
        ("/api/timeline", {"topic": "<script>"}, 400, "not a legal Kafka topic name"),
        ("/api/timeline", {"axis": "depth"}, 400, "axis: must be offset or time"),
        ("/api/timeline", {"bins": "2001"}, 400, "bins: must be 1 to 2,000"),
        ("/api/timeline", {"from": "9", "to": "1"}, 400, "from: 9 is above to, 1"),
        ("/api/timeline", {}, 404, "RLMM has no partition"),
        ("/api/segment", {"id": "A" * 21 + "Q"}, 404, "RLMM has no segment"),
        ("/api/topics", {"limit": "501"}, 400, "limit: must be 1 to 500"),
        ("/api/topics", {"order": "size"}, 400, "order: must be one of lag, local, name, problems"),
        ("/api/anomalies", {"kind": "x"}, 400, "kind: must be one of ORPHAN_OBJECTS"),
        ("/api/anomalies", {"page": "x"}, 400, "page_token"),
        ("/api/nothing", {}, 404, "there is no such page"),
        ("/static/../app.py", {}, 404, "there is no such page"),
    ],
)
def test_a_bad_request_is_refused_in_plain_words(
    console: ServedConsole, path: str, parameters: dict[str, str], code: int, text: str
) -> None:
    known = of(a_topic("orders", 1)[0]) if path in ("/api/timeline", "/api/segment") else {}
    known = {} if parameters == {"topic": "orders"} else known
    answer = console.send("GET", path, **{**known, **parameters})
    assert (answer.code, text in answer.json["error"]) == (code, True), answer.body


def test_nothing_but_get_is_served_and_the_headers_are_strict(console: ServedConsole) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = console.send(method, "/api/topics")
        assert (answer.code, "read-only" in answer.json["error"]) == (405, True)
    page = console.send("GET", "/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in page.body
    assert b"//" not in page.body


def test_without_tls_another_sites_name_is_refused(console: ServedConsole) -> None:
    """Its page could else read this one: it lets its name resolve to 127.0.0.1."""
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert console.send("GET", "/api/topics", host=host).code == 421
    assert console.send("GET", "/api/topics", host="localhost:1234").code == 200


def test_an_rlmm_that_is_away_is_said_to_be(database_url: str) -> None:
    with serving_console(ServiceAddresses(rlmm=AWAY)) as console:
        answer = console.send("GET", "/api/topics")
        assert (answer.code, AWAY in answer.json["error"]) == (503, True)
        health = console.get("/api/health")
    severities = {each["service"]: each["severity"] for each in health["services"]}
    assert severities["rlmm"] == "CRITICAL"


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "[::]", "console.example"])
def test_without_tls_only_this_machine_is_served(host: str) -> None:
    variables = {
        "CONSOLE_RLMM_ADDRESS": AWAY,
        "CONSOLE_LISTEN_ADDRESS": f"{host}:0",
    }
    with pytest.raises(SystemExit, match="without TLS the console serves this machine only"):
        ConsoleSettings.from_environment(variables)


HALF_A_REQUEST = b"GET /api/about HTTP/1.1\r\nHost: localhost\r\n"
A_REQUEST = HALF_A_REQUEST + b"\r\n"


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    assert address.port is not None
    return socket.create_connection(("127.0.0.1", address.port), 60)


@pytest.mark.parametrize("sent", [b"", HALF_A_REQUEST, A_REQUEST], ids=["none", "half", "whole"])
def test_connections_without_a_request_make_room(sent: bytes) -> None:
    with serving_console(ServiceAddresses(rlmm=AWAY)) as console, ExitStack() as opened:
        waiting = []
        for _ in range(200):
            waiting.append(opened.enter_context(connected(console.url)))
            waiting[-1].sendall(sent)
            if sent == A_REQUEST:
                assert waiting[-1].recv(4096).startswith(b"HTTP/1.1 200")
        assert console.get("/api/about")["version"] == release()
        for closed in waiting[: 200 - MAX_CONNECTIONS + 1]:
            with suppress(OSError):
                while closed.recv(4096):
                    pass
        ended, _, _ = select.select(waiting[-1:], [], [], 0)
        assert not ended or sent == A_REQUEST


def test_headers_that_do_not_come_end_the_connection() -> None:
    with (
        serving_console(ServiceAddresses(rlmm=AWAY), headers_s=0.2) as console,
        connected(console.url) as silent,
        connected(console.url) as half,
    ):
        half.sendall(HALF_A_REQUEST)
        for each in (silent, half):
            with suppress(ConnectionError):
                assert each.recv(1) == b""


def serving_with_tls(deployment: Deployment, rlmm: str) -> AbstractContextManager[ServedConsole]:
    settings = deployment.settings()
    assert settings.tls_certificate_file is not None
    tls = ReloadedTls(
        TlsFiles(settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file)
    )
    return serving_console(
        ServiceAddresses(rlmm=rlmm), policy=policy_file(deployment.policy), tls=tls
    )


@pytest.mark.deep
def test_certificates_without_a_grant_keep_no_person_out(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grant(spiffe("auditor"), Role.AUDITOR)
    stranger, auditor = deployment.client("stranger"), deployment.client("auditor")
    assert stranger.certificate is not None
    context = ssl.create_default_context(cafile=stranger.ca)
    context.check_hostname = False
    context.load_cert_chain(stranger.certificate, stranger.key)
    with (
        serving_with_tls(deployment, AWAY) as console,
        ExitStack() as opened,
    ):
        for _ in range(MAX_CONNECTIONS + 12):
            opened.enter_context(context.wrap_socket(connected(console.url)))
        assert console.send("GET", "/api/about", security=auditor).code == 200


@pytest.mark.deep
def test_with_tls_people_see_what_the_policy_grants_them(rlmm: RlmmProcess, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.grant(spiffe("auditor"), Role.AUDITOR)
    deployment.grant(spiffe("reader"), Role.READER, topics=["orders*"])
    deployment.grant(spiffe("shipper"), Role.SHIPPER, Role.ADMIN)
    orders, audit = a_topic("orders", 1)[0], a_topic("audit", 1)[0]
    made = finished(rlmm.client, orders, 0, 9)
    finished(rlmm.client, audit, 0, 9)
    put_deletion(rlmm.client, audit, MARKED)
    segment_id = uuid_to_text(made.remote_log_segment_id.id)
    with serving_with_tls(deployment, rlmm.address) as console:

        def names(who: ClientSecurity) -> list[str]:
            answer = console.send("GET", "/api/topics", security=who)
            return sorted(topic["topic"] for topic in answer.json["topics"])

        auditor, reader = deployment.client("auditor"), deployment.client("reader")
        assert (names(auditor), names(reader)) == (["audit", "orders"], ["orders"])
        about = console.send("GET", "/api/about", security=reader).json
        assert about["identity"] == spiffe("reader")

        def code(who: ClientSecurity, path: str, **parameters: Any) -> int:
            return console.send("GET", path, security=who, **parameters).code

        assert code(reader, "/api/timeline", **of(orders)) == 200
        assert code(reader, "/api/timeline", **of(audit)) == 403
        # The id of a topic under a name that is granted.
        disguised = of(audit) | {"topic": "orders"}
        assert code(reader, "/api/timeline", **disguised) == 400
        assert (
            code(reader, "/api/partitions", **{k: disguised[k] for k in ("topic", "topic_id")})
            == 404
        )
        assert [code(reader, path) for path in ("/api/anomalies", "/api/sweeps")] == [403, 403]
        life = console.send(
            "GET", "/api/segment", security=reader, **of(orders, id=segment_id)
        ).json
        assert (life["events"], "auditor" in life["events_note"]) == ([], True)
        assert console.send("GET", "/api/health", security=reader).json["lines"] == []
        assert code(auditor, "/api/anomalies") == 200
        shipper = console.send("GET", "/", security=deployment.client("shipper"))
        assert (shipper.code, "reader or auditor" in shipper.json["error"]) == (403, True)
        nameless = deployment.authority.issue("nameless", hosts=(), uris=())
        assert code(deployment.with_certificate(nameless), "/api/about") == 401
        with pytest.raises((ssl.SSLError, ConnectionError)):
            console.send("GET", "/", security=ClientSecurity(deployment.authority.certificate))
