"""Measure rlm_idle: the cost of watching idle partitions."""

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.progress import Progress

from benchmarks.measure import QUICK, Result, Side, counted_rounds, say, tree_cpu_seconds
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.histories import BROKER_ID, EPOCHS, Layout, PartitionHistory
from services.api.ids import uuid_to_text
from services.common.client_security import PLAINTEXT
from services.local.stack import ServiceProcess, rlm_settings
from services.rlm.settings import RlmSettings
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient

# The cluster of KIP-405.
LAYOUT = Layout(630 if QUICK else 6_300, 400, is_whole=True)
ROUNDS = 1 if QUICK else 3
INTERVAL_S = float(RlmSettings.model_fields["remote_log_manager_task_interval_ms"].default) / 1000
ROUND_S = INTERVAL_S  # in which each partition has a pass of each kind
TEN_YEARS_MS = 10 * 365 * 24 * 60 * 60 * 1000
_WARM_UP_S = 1_800.0
_LAST_SUCCESS = "sediment_rlm_seconds_since_last_success"
_POOLS = ("copier", "expiration")


def run() -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as name,
        databases().scratch(LAYOUT) as database_url,
        running_rlmm(database_url) as rlmm,
    ):
        say("rlm_idle: the database is filled")
        _keep_for_ten_years(rlmm.address)
        directory = Path(name)
        log_dir = make_idle_log_dir(directory / "log", LAYOUT.partition_histories())
        with _running_rlm(directory, rlmm.address, log_dir) as rlm:
            _wait_until_all_rest(rlm.announcement.metrics)
            say("rlm_idle: each partition had its first passes")
            pids = {
                "rlm": rlm.process.pid,
                "rlmm": rlmm.process.pid,
                "postgres": databases().server.pid,
            }
            total, sides = _measured(pids)
    return Result(
        "rlm_idle",
        "% of one core, of RLM, RLMM and PostgreSQL together",
        statistics.median(total.samples),
        total.samples,
        total,
        Side(""),
        {
            "partitions": LAYOUT.partitions,
            "segments": LAYOUT.total_segments(),
            "interval_s": INTERVAL_S,
            "round_s": ROUND_S,
            "rounds": ROUNDS,
            **{f"{name}, %": round(statistics.median(side), 2) for name, side in sides.items()},
            **databases().conditions(),
        },
    )


def make_idle_log_dir(directory: Path, histories: Iterable[PartitionHistory]) -> Path:
    """Make the log directory of the broker: everything is rolled, copied, and deleted here."""
    directory.mkdir()
    (directory / "meta.properties").write_text(
        f"version=1\nnode.id={BROKER_ID}\ncluster.id=bench\n"
    )
    for history in histories:
        tp = history.topic_id_partition
        folder = directory / f"{tp.topic}-{tp.partition}"
        folder.mkdir()
        entries = [f"{epoch} {history.epoch_offsets(epoch)[0]}" for epoch in range(EPOCHS)]
        checkpoint = "\n".join(["0", str(EPOCHS), *entries]) + "\n"
        (folder / "leader-epoch-checkpoint").write_text(checkpoint)
        topic_id = uuid_to_text(tp.topic_id)
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
        (folder / f"{history.end_offset + 1:020}.log").touch()
    return directory


def _keep_for_ten_years(rlmm_address: str) -> None:
    """Set a retention that no segment has reached yet, so that RLM has to evaluate it."""
    topic_ids = {h.topic_id_partition.topic_id for h in LAYOUT.partition_histories()}
    with open_channel(rlmm_address, PLAINTEXT) as channel:
        client = RemoteLogMetadataManagerClient(channel, rlmm_address)
        for topic_id in topic_ids:
            client.put_topic_config(topic_id, {"retention.ms": str(TEN_YEARS_MS)}, now=True)


@contextmanager
def _running_rlm(directory: Path, rlmm_address: str, log_dir: Path) -> Iterator[ServiceProcess]:
    # Without copies and reads no RSM is needed.
    settings = rlm_settings("127.0.0.1:1", rlmm_address, [log_dir], None)
    service = ServiceProcess("rlm", settings, directory / "services")
    service.start()
    try:
        yield service
    finally:
        service.stop()


def _wait_until_all_rest(metrics_address: str) -> None:
    """Wait until each partition has had a good pass of each kind."""
    due_s, started_s = time.monotonic() + _WARM_UP_S, time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("first passes", total=len(_POOLS) * LAYOUT.partitions)
        while time.monotonic() < due_s:
            Event().wait(5.0)
            running_s = time.monotonic() - started_s
            ages_s = list(_ages_s(metrics_address))
            # The age without any good pass is that of the process, except for its start.
            done = sum(age_s < running_s - 5.0 for age_s in ages_s)
            progress.update(bar, completed=done)
            if done == len(_POOLS) * LAYOUT.partitions:
                return
    raise RuntimeError(f"not all partitions had a good pass within {_WARM_UP_S:.0f} s")


def _ages_s(metrics_address: str) -> Iterator[float]:
    with urlopen(f"http://{metrics_address}/metrics", timeout=30) as answer:
        page = str(answer.read(), "utf-8")
    for family in text_string_to_metric_families(page):
        for sample in family.samples if family.name == _LAST_SUCCESS else ():
            if sample.labels["pool"] in _POOLS and sample.labels["topic"]:
                yield sample.value


def _measured(pids: dict[str, int]) -> tuple[Side, dict[str, list[float]]]:
    """Return the percent of a core, round by round: of all processes together, and of each."""
    total = Side("percent of one core")
    sides: dict[str, list[float]] = {name: [] for name in pids}
    for _ in counted_rounds("rlm_idle", ROUNDS):
        before = {name: tree_cpu_seconds(pid) for name, pid in pids.items()}
        started_s = time.monotonic()
        Event().wait(ROUND_S)
        took_s = time.monotonic() - started_s
        used = {name: tree_cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        for name, cpu_s in used.items():
            sides[name].append(100 * cpu_s / took_s)
        total.samples.append(100 * sum(used.values()) / took_s)
        say(f"rlm_idle: {total.samples[-1]:.1f} % of a core")
        total.cpu_seconds.append(sum(used.values()))
        for name, pid in pids.items():
            total.peak_rss_bytes[name] = psutil.Process(pid).memory_info().rss
    return total, sides
