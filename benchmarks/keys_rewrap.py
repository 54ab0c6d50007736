"""Measure `sediment keys rewrap`: manifests a second, after each rotation of the ring's key."""

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.deployment import deployed
from benchmarks.measure import QUICK, ROUNDS, Result, Side, counted_rounds, tree_cpu_seconds
from benchmarks.store import STORE
from services.common.client_security import PLAINTEXT
from services.rlm.copy.ship import ship
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import SegmentObjectsClient
from services.workflows.rewrap import PARALLEL, KeyRun
from tests.harness.synthetic_log import BATCH_BYTES, make_log_dir
from tests.unit.rsm.test_rsm_keys import write_key

SEGMENTS = 500 if QUICK else 3_000
PARTITIONS = 10


def run() -> Result:
    side = Side("segments rewrapped a second")
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        ring, file, log_dir = (Path(name) / each for each in ("keys", "locations.toml", "log"))
        write_key(ring, "key-0", current=True)
        file.write_text(f'[keys]\ndirectory = "{ring}"\n')
        make_log_dir(log_dir, PARTITIONS, SEGMENTS // PARTITIONS, BATCH_BYTES)
        with (
            deployed(settings={"RSM_LOCATIONS_FILE": str(file)}) as services,
            open_channel(services.stack.endpoints.rsm, PLAINTEXT) as channel,
        ):
            ship([log_dir], services.rsm, services.rlmm)
            objects = SegmentObjectsClient(channel, services.stack.endpoints.rsm)
            for number in counted_rounds("keys_rewrap", ROUNDS):
                write_key(ring, f"key-{number + 1}", current=True)
                before_s, began_s = tree_cpu_seconds(services.pids["rsm"]), time.perf_counter()
                done = KeyRun(services.rlmm, objects).rewrap()
                side.samples.append(done.changed / (time.perf_counter() - began_s))
                side.cpu_seconds.append(tree_cpu_seconds(services.pids["rsm"]) - before_s)
                if done.changed != SEGMENTS:
                    raise RuntimeError(f"{done.changed} of {SEGMENTS} segments were rewrapped")
    conditions: dict[str, object] = {
        "segments": SEGMENTS,
        "parallel": PARALLEL,
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "store": STORE,
    }
    value = statistics.median(side.samples)
    return Result(
        "keys_rewrap", "segments/s", value, list(side.samples), side, Side("-"), conditions
    )
