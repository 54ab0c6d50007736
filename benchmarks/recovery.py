"""Measure recovery: a standby that takes over, a rebuild from the bucket, a topic back in Kafka."""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from benchmarks import restore
from benchmarks.deployment import Deployment, deployed
from benchmarks.measure import QUICK, Result, Side, counted_rounds
from benchmarks.rlmm.database import databases
from benchmarks.store import STORE
from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.rlm.copy.ship import ship
from services.rlmm.database import schema
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.contract.rlmm.segments import add, segment
from tests.harness.postgres_servers import Replicated, replicated
from tests.harness.processes import running_rlmm
from tests.harness.synthetic_log import BATCH_BYTES, make_log_dir

ROUNDS = 1 if QUICK else 3
SEGMENTS = 500 if QUICK else 10_000
PARTITIONS = 10
OBJECTS_PER_SEGMENT = 3
_RETRY_S = 0.01
_WARM_UP_S = 1.0
_PATIENCE_S = 60.0
_MIB_PER_TIB = 1024 * 1024
_S_PER_HOUR = 3600


def run_promotion() -> Result:
    """Measure from the command that promotes the standby until RLMM acknowledges a write."""
    killed, read_only = Side("the primary is killed, s"), Side("the primary turns read-only, s")
    waits: list[float] = []
    for _ in counted_rounds("recovery_promotion", ROUNDS):
        killed.samples.append(_promoted(lambda servers: servers.primary.kill(), waits))
        read_only.samples.append(_promoted(lambda servers: servers.refuse_changes(), waits))
    samples = [max(pair) for pair in zip(killed.samples, read_only.samples, strict=True)]
    return Result(
        "recovery_promotion",
        "s from pg_promote to the first acknowledged write, the worse of both",
        statistics.median(samples),
        samples,
        killed,
        read_only,
        {"rounds": ROUNDS, "of_these_pg_promote_s": [round(each, 2) for each in waits]},
    )


def run_rebuild() -> Result:
    """Measure `sediment db rebuild --apply` of an empty database, for a million objects."""
    side, samples = Side(f"{SEGMENTS * OBJECTS_PER_SEGMENT} objects, s"), list[float]()
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name, deployed() as services:
        log_dir = Path(name) / "log"
        make_log_dir(log_dir, PARTITIONS, SEGMENTS // PARTITIONS, BATCH_BYTES)
        ship([log_dir], services.rsm, services.rlmm)
        for number in counted_rounds("recovery_rebuild", ROUNDS):
            side.samples.append(_rebuilt(services, Path(name) / f"rlmm-{number}"))
            samples.append(side.samples[-1] * 1e6 / (SEGMENTS * OBJECTS_PER_SEGMENT))
        conditions = {
            "segments": SEGMENTS,
            "objects_per_segment": OBJECTS_PER_SEGMENT,
            "rounds": ROUNDS,
            "scaled": "linear: the manifests of all segments are read once, a listing names them",
            "durability": services.durability(),
            "store": STORE,
        }
    return Result(
        "recovery_rebuild",
        "s for a million objects",
        statistics.median(samples),
        samples,
        side,
        Side("-"),
        conditions,
    )


def run_restore() -> Result:
    """Measure `sediment restore` into a broker's log directory, as hours for a TiB."""
    measured = restore.run()
    samples = [_MIB_PER_TIB / speed / _S_PER_HOUR for speed in measured.numerator.samples]
    return replace(
        measured,
        name="recovery_restore",
        unit="hours for a TiB: 1,048,576 MiB / (MiB/s) / 3,600",
        value=statistics.median(samples),
        samples=samples,
    )


def _promoted(lose_primary: Callable[[Replicated], None], waits: list[float]) -> float:
    """Promote a standby under a writer; return the seconds to its first acknowledged write."""
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        with replicated(directory) as servers:
            schema.upgrade(servers.primary.create_database("tier"))
            servers.catch_up()
            url = servers.url("tier", attributes="")
            with running_rlmm(url, directory / "rlmm") as rlmm:
                writing = _Writing(rlmm.client)
                try:
                    Event().wait(_WARM_UP_S)
                    lose_primary(servers)
                    began_s = time.monotonic()
                    servers.promote()
                    waits.append(time.monotonic() - began_s)
                    return writing.first_after(began_s) - began_s
                finally:
                    writing.end()


class _Writing(Thread):
    """Adds one segment after the other to RLMM, again at once if a call fails."""

    def __init__(self, rlmm: RemoteLogMetadataManagerClient) -> None:
        super().__init__(daemon=True)
        self._rlmm, self._end, self._at_s = rlmm, Event(), list[float]()
        self.start()

    def run(self) -> None:
        name, offset = TopicIdPartition(uuid4(), "recovery", 0), 0
        while not self._end.is_set():
            made = segment(name, offset, offset + 9)
            try:
                add(self._rlmm, made)
            except RetriableRemoteStorageError:
                self._end.wait(_RETRY_S)
            else:
                self._at_s.append(time.monotonic())
                offset += 10

    def first_after(self, since_s: float) -> float:
        while not self._at_s or self._at_s[-1] <= since_s:
            if time.monotonic() > since_s + _PATIENCE_S:
                raise RuntimeError(f"no write was acknowledged for {_PATIENCE_S:.0f} s")
            self._end.wait(_RETRY_S)
        return next(at_s for at_s in self._at_s if at_s > since_s)

    def end(self) -> None:
        self._end.set()
        self.join()


def _rebuilt(services: Deployment, directory: Path) -> float:
    """Fill an empty database from the bucket; return the seconds that the command took."""
    url = databases().server.create_database(f"rebuilt_{uuid4().hex}")
    schema.upgrade(url)
    rsm = services.stack.endpoints.rsm
    with running_rlmm(url, directory) as rlmm:
        began_s = time.monotonic()
        done = rlmm.sediment("db", "rebuild", "--rsm", rsm, "--apply", "--output", "json")
        seconds = time.monotonic() - began_s
    imported = json.loads(done.stdout)["imported"] if done.returncode == 0 else 0
    if imported != SEGMENTS:
        raise RuntimeError(f"{imported} of {SEGMENTS} segments are back: {done.stderr}")
    return seconds
