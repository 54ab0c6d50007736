"""Measure broker_over_read: what a consumer of the tier asks of the store and of RLMM.

A proxy before the store counts requests and bytes, so that no time is measured here. Each way to
read has a broker that has read nothing before: manifests and indexes count.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.broker_catch_up import CASES
from benchmarks.brokers import (
    BROKER,
    DIRECT,
    JVM_OPTIONS,
    SEGMENT_BYTES,
    STREAMED,
    bench_directory,
    produce,
    wait_until_gone,
)
from benchmarks.java_client import Consumer
from benchmarks.measure import MIB, Result, Side
from benchmarks.store import STORE, s3_server
from demos.kafka_broker import KafkaBroker, plugin_settings
from services.local.stack import BUCKET, PREFIX, EmbeddedStack, ServiceProcess, rsm_settings
from tests.harness.eventually import eventually
from tests.harness.http_proxy import HttpProxy, Request
from tests.harness.jars import ensure_kafka_jars
from tests.harness.kafka_broker import plugin_jar

SEGMENTS = 8
LOOK_UPS = ("GetRemoteLogSegmentMetadata", "GetNextSegmentWithTxnIndex", "WatchPartitions")
CASE = replace(
    CASES[0], name="16 KiB, read_committed", segments=SEGMENTS, isolation="read_committed"
)
_MARKER = "/.sediment"
"""Read each second, with or without consumers."""


@dataclass(frozen=True)
class Requested:
    """What one consumer of all segments asked for.

    Attributes:
        look_ups: calls of RLMM; those of Kafka's own tasks are not counted.
    """

    delivered_bytes: int
    store_bytes: int
    store_requests: Mapping[str, int]
    look_ups: Mapping[str, int]

    def per_gib(self, counts: Mapping[str, int]) -> float:
        return sum(counts.values()) * 1024 * MIB / self.delivered_bytes


def run() -> Result:
    asked = {side: _asked(side) for side in (STREAMED, DIRECT)}
    ratios = [each.store_bytes / each.delivered_bytes for each in asked.values()]
    conditions: dict[str, object] = {
        side: {
            "bytes asked of the store / delivered": round(
                each.store_bytes / each.delivered_bytes, 3
            ),
            "store requests per GiB": round(each.per_gib(each.store_requests)),
            "store requests": dict(each.store_requests),
            "look-ups in RLMM per GiB": round(each.per_gib(each.look_ups), 1),
            "look-ups in RLMM": dict(each.look_ups),
        }
        for side, each in asked.items()
    }
    return Result(
        "broker_over_read",
        "bytes asked of the store / bytes delivered",
        max(ratios),
        ratios,
        Side("asked, MiB", [each.store_bytes / MIB for each in asked.values()]),
        Side("delivered, MiB", [each.delivered_bytes / MIB for each in asked.values()]),
        {"segment_bytes": SEGMENT_BYTES, "store": STORE, "case": CASE.name, **conditions},
    )


def _asked(side: str) -> Requested:
    with _broker_behind_proxy(side) as (broker, proxy, rlmm), Consumer() as consumer:
        produce(CASE, {side: broker})
        ends = wait_until_gone(broker, CASE.topic(side))
        proxy.forget_requests()
        before = _look_ups(rlmm)
        size, _, _ = consumer.read(
            broker.bootstrap_servers, CASE.topic(side).name, CASE.isolation, ends
        )
        requests = _settled(proxy)
        return Requested(
            size,
            sum(each.size_bytes for each in requests if each.method == "GET"),
            Counter(_kind(each) for each in requests),
            _look_ups(rlmm) - before,
        )


def _kind(request: Request) -> str:
    path = request.target.partition("?")[0]
    return f"{request.method} {path.rpartition('.')[2] if '.' in path else path}"


def _settled(proxy: HttpProxy) -> list[Request]:
    """Return all requests since the reset: chunks ahead of a reader are read to their end."""
    before: list[Request] = []

    def nothing_new() -> bool:
        nonlocal before
        before, now = [r for r in proxy.requests if not r.target.endswith(_MARKER)], before
        return before == now

    eventually(nothing_new, poll_ms=2_000)
    return [r for r in before if r.method == "GET" and "." in r.target.rpartition("/")[2]]


def _look_ups(rlmm: str) -> Counter[str]:
    with urlopen(f"http://{rlmm}/metrics", timeout=10) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    counted = Counter[str]()
    for sample in (sample for family in families for sample in family.samples):
        method = sample.labels.get("method", "").rpartition("/")[2]
        if sample.name == "sediment_rpc_seconds_count" and method in LOOK_UPS:
            counted[method] += int(sample.value)
    return counted


@contextmanager
def _broker_behind_proxy(side: str) -> Iterator[tuple[KafkaBroker, HttpProxy, str]]:
    """Start everything; yield the broker, the proxy and the address of RLMM's metrics."""
    with ExitStack() as opened:
        directory = opened.enter_context(bench_directory())
        s3 = s3_server(directory / "s3")
        stack = opened.enter_context(EmbeddedStack(directory / "stack", with_rlm=False, s3=s3))
        proxy = opened.enter_context(HttpProxy(s3.endpoint.endpoint))
        rsm = ServiceProcess(
            "rsm",
            {
                **rsm_settings(replace(s3.endpoint, endpoint=proxy.address), BUCKET, PREFIX),
                "RSM_DIRECT_READS": "true",
                "RSM_PUBLIC_STORE_ENDPOINT": f"http://{proxy.address}",
            },
            directory / "rsm",
        )
        rsm.start()
        opened.callback(rsm.stop)
        plugin = plugin_settings(plugin_jar(), rsm.address, stack.endpoints.rlmm)
        if side == DIRECT:
            plugin["rsm.config.direct.reads"] = "true"
        broker = KafkaBroker(
            directory / side,
            ensure_kafka_jars(),
            {**BROKER, **plugin},
            jvm_options=JVM_OPTIONS,
        )
        opened.enter_context(broker)
        yield broker, proxy, stack.services["rlmm"].announcement.metrics
