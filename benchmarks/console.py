"""Measure console_paint: how fast the console paints in Chromium over KIP-405's cluster.

6,300 partitions with 2.6 million segments; one of them has 200,000. The figure is the first paint
of the topics over that of the large partition's timeline. The aim is at most a second for each.
"""

import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from benchmarks.measure import ROUNDS, Result, Side, counted_rounds, tree_cpu_seconds
from benchmarks.rlmm.database import databases, running_rlmm
from benchmarks.rlmm.histories import Layout
from services.api.ids import uuid_to_text
from services.local.process import LOOPBACK, ChildProcess
from services.local.stack import own_environment
from tests.harness.local_servers import free_ports

LARGE = 200_000
LAYOUT = Layout(6_300, 381, large_segments=LARGE)
_CHROMIUM = "/usr/bin/chromium"
_TIMEOUT_MS = 60_000
_TOPIC = "main tbody tr"
_CHART = ".chart canvas"
_PAINTED = """
    ([selector, of]) => {
        const found = document.querySelector(selector);
        return found && found.getClientRects().length && document.body.innerText.includes(of)
            ? performance.now() : 0;
    }"""


def run() -> Result:
    """Open each page in a new tab, alternately; both sides in seconds."""
    # Only this benchmark needs a browser.
    from playwright.sync_api import Browser, sync_playwright

    topics, timeline = Side("topics painted"), Side("timeline painted")
    url = databases().history(LAYOUT)
    large = LAYOUT.partition_histories()[0].topic_id_partition
    path = f"#/partition/{uuid_to_text(large.topic_id)}/{large.topic}/{large.partition}"

    with (
        running_rlmm(url) as rlmm,
        _running_console(rlmm.address) as (console, address),
        sync_playwright() as playwright,
    ):
        browser: Browser = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )

        def painted(side: Side, target: str, selector: str, text: str) -> None:
            before = tree_cpu_seconds(console.pid) + tree_cpu_seconds(rlmm.process.pid)
            page = browser.new_page(viewport={"width": 1_280, "height": 900})
            page.goto(f"http://{address}/{target}")
            shown = page.wait_for_function(_PAINTED, arg=[selector, text], timeout=_TIMEOUT_MS)
            side.samples.append(float(shown.json_value()) / 1000)
            page.close()
            after = tree_cpu_seconds(console.pid) + tree_cpu_seconds(rlmm.process.pid)
            side.cpu_seconds.append(after - before)

        for _ in counted_rounds("console_paint", ROUNDS):
            painted(topics, "", _TOPIC, large.topic)
            painted(timeline, path, _CHART, large.topic)
        browser.close()
    samples = [a / b for a, b in zip(topics.samples, timeline.samples, strict=True)]
    conditions: dict[str, object] = {
        "rounds": ROUNDS,
        "cores": os.cpu_count(),
        "segments": LAYOUT.total_segments(),
        "the first round has to read everything, s": [topics.samples[0], timeline.samples[0]],
    }
    value = statistics.median(samples)
    return Result("console_paint", "ratio", value, samples, topics, timeline, conditions)


@contextmanager
def _running_console(rlmm_address: str) -> Iterator[tuple[ChildProcess, str]]:
    directory = databases().directory / "console"
    directory.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    address = f"{LOOPBACK}:{port}"
    settings = {
        "CONSOLE_LISTEN_ADDRESS": address,
        "CONSOLE_RLMM_ADDRESS": rlmm_address,
        "SEDIMENT_PLAINTEXT": "true",
    }
    command = [sys.executable, "-m", "services.console"]
    process = ChildProcess("console", command, directory, own_environment(settings))

    def answers() -> bool:
        try:
            with urlopen(f"http://{address}/", timeout=10):
                return True
        except OSError:
            return False

    process.start()
    try:
        process.wait_until_ready(answers, _TIMEOUT_MS)
        yield process, address
    finally:
        process.stop()
