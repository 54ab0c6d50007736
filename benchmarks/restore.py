"""Measure restore: four partitions into a log directory, against the bare client's GETs.

The bare client reads the logs of the same segments, four at once, into files.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from benchmarks.deployment import deployed
from benchmarks.measure import MIB, ROUNDS, Result, mib_per_s, ratio
from benchmarks.store import STORE
from services.cli.restore import restore_all
from services.cli.restore_plans import RestoreRequest, plan_restores
from services.rlm.copy.ship import ship
from services.rpc.client.direct import DirectReader
from services.workflows.restore import RestoredLog
from tests.harness.synthetic_log import make_log_dir

PARTITIONS = 4
SEGMENTS = 2
SEGMENT_BYTES = 32 * MIB


def run() -> Result:
    return _run("restore", {})


def run_direct() -> Result:
    return _run("restore_direct", {"RSM_DIRECT_READS": "true"})


def _run(name: str, settings: Mapping[str, str]) -> Result:
    with (
        tempfile.TemporaryDirectory(prefix="sediment-bench-") as temporary,
        deployed(settings=settings) as services,
        closing(DirectReader(services.rsm)) as reader,
    ):
        log_dir, target = Path(temporary) / "log", Path(temporary) / "target"
        make_log_dir(log_dir, PARTITIONS, SEGMENTS, SEGMENT_BYTES)
        ship([log_dir], services.rsm, services.rlmm)
        client = services.s3_client()
        listed = client.list_objects(services.bucket, recursive=True)
        keys = [str(o.object_name) for o in listed if str(o.object_name).endswith(".log")]
        size = PARTITIONS * SEGMENTS * SEGMENT_BYTES
        names = [f"bench-{number}" for number in range(PARTITIONS)]

        def restore() -> float:
            target.mkdir()
            shutil.copy(log_dir / "meta.properties", target)
            request = RestoreRequest(target, "", None, None, None, None, False, False)
            outcomes: list[object] = []

            def once() -> None:
                plans = plan_restores((services.rsm, reader, services.rlmm), request, names)
                outcomes.extend(log for _, log in restore_all(target, plans, lambda _: None))

            speed = mib_per_s(size, once)
            shutil.rmtree(target)
            if not all(isinstance(each, RestoredLog) for each in outcomes):
                raise RuntimeError(f"not everything was restored: {outcomes}")
            return speed

        def fetch(key: str) -> None:
            response = client.get_object(services.bucket, key)
            with closing(response), (target / key.replace("/", "_")).open("wb") as file:
                while data := response.read(MIB):
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())

        def bare() -> float:
            target.mkdir()
            with ThreadPoolExecutor(PARTITIONS) as pool:
                speed = mib_per_s(size, lambda: list(pool.map(fetch, keys)))
            shutil.rmtree(target)
            return speed

        restore()
        bare()
        return ratio(
            name,
            ROUNDS,
            ("restore, MiB/s", restore),
            ("bare client's GETs into files, MiB/s", bare),
            services.pids,
            {
                "partitions": PARTITIONS,
                "segments": PARTITIONS * SEGMENTS,
                "segment_bytes": SEGMENT_BYTES,
                "fsync": "each file, on both sides",
                "store": STORE,
                **settings,
            },
        )
