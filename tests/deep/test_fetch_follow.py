"""Follow a log with `sediment fetch --follow` as a process, while RLM restarts, until Ctrl-C."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.api.ids import uuid_to_text
from services.local.stack import ServiceProcess, own_environment, rlm_settings
from tests.harness.synthetic_log import honest_batch
from tests.harness.world import World
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles

pytestmark = pytest.mark.deep

WAIT_S = 60.0


@pytest.fixture
def files(deployment: World, log_dir: Path) -> PartitionFiles:
    """Offset 0, which is in the tier, and 1."""
    files = PartitionFiles(log_dir)
    for offset, value in enumerate((b"zero", b"one")):
        files.segment(offset, [honest_batch(offset, [value])])
        files.snapshot(offset + 1)
    deployment.log_dir = log_dir
    deployment.ship()
    return files


@pytest.fixture
def rlm(deployment: World, files: PartitionFiles, tmp_path: Path) -> Iterator[ServiceProcess]:
    addresses = deployment.rsm.address, deployment.rlmm.address
    process = ServiceProcess(
        "rlm", rlm_settings(*addresses, [deployment.log_dir], None), tmp_path / "rlm"
    )
    process.start()
    yield process
    process.kill()


@pytest.fixture
def children_take_ctrl_c() -> Iterator[None]:
    """Let children take SIGINT, which the jobs of a shell's background ignore, and theirs too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("children_take_ctrl_c")
def test_records_are_printed_as_they_come_until_ctrl_c(
    deployment: World, files: PartitionFiles, rlm: ServiceProcess
) -> None:
    name = f"{uuid_to_text(NAME.topic_id)}:{NAME.topic}-{NAME.partition}"
    addresses = (f"--rlm={rlm.address}", f"--rlmm={deployment.rlmm.address}")
    command = ("fetch", name, "--offset=0", "--follow", "-f", "%o %s\n", *addresses)
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(
            [sys.executable, "-m", "services.cli", *command],
            env=own_environment({"PYTHONUNBUFFERED": ""}),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process,
    ):
        try:

            def printed() -> str:
                assert process.stdout is not None
                return pool.submit(process.stdout.readline).result(timeout=WAIT_S)

            def append(offset: int, value: bytes) -> None:
                with files.file(1, ".log").open("ab") as log:
                    log.write(honest_batch(offset, [value]))

            assert [printed(), printed()] == ["0 zero\n", "1 one\n"]
            append(2, b"two")
            assert printed() == "2 two\n"
            rlm.kill()
            append(3, b"three")
            rlm.start()
            assert printed() == "3 three\n"
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "", "")
