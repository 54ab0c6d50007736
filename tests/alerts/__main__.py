"""`make test-alerts`: fire each alert by a fault, see it clear afterwards, and print the times."""

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

from tests.alerts.deployment import SEGMENT_BYTES, Deployment, deployed
from tests.alerts.faults import ROUNDS, Fault
from tests.alerts.prometheus import Prometheus
from tests.harness.eventually import eventually
from tests.harness.read_loop import ReadLoop
from tests.harness.rolling_broker import RollingBroker
from tools.alerts import ALERTS

_FACTOR = 60
_DEADLINE_S = 300.0
_POLL_S = 0.25
_TIMES = Path(__file__).parent / "times.json"


@dataclass(frozen=True)
class Times:
    """How long an alert took to fire after its fault began, and to clear after the fault ended."""

    alert: str
    fault: str
    fires_s: float
    clears_s: float


class AlertError(RuntimeError):
    """An alert did not fire, did not clear, or fired without a fault."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make test-alerts", description=__doc__)
    parser.add_argument(
        "--factor", type=int, default=_FACTOR, help="divides all times of the rules"
    )
    parser.add_argument("--only", action="append", help="an alert; may be repeated")
    parser.add_argument("--silent-minutes", type=float, help="instead, expect no alert for so long")
    parser.add_argument("--write", action="store_true", help="keep the times for `make docs`")
    chosen = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="sediment-alerts-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        with (
            deployed(directory) as deployment,
            _scraped(deployment, directory, chosen.factor) as by,
        ):
            try:
                if chosen.silent_minutes is not None:
                    _expect_silence(deployment, by, chosen.silent_minutes * 60)
                    return 0
                found = _all_rounds(deployment, by, chosen.only)
            except AlertError as e:
                sys.stderr.write(f"test-alerts: {e}\n")
                return 1
    if chosen.write:
        order = [alert.name for alert in ALERTS]
        found.sort(key=lambda times: order.index(times.alert))
        rounded = [
            {k: round(v, 1) if isinstance(v, float) else v for k, v in asdict(each).items()}
            for each in found
        ]
        _TIMES.write_text(json.dumps(rounded, indent=2) + "\n")
    return 0


@contextmanager
def _scraped(deployment: Deployment, directory: Path, factor: int) -> Iterator[Prometheus]:
    _verify(deployment)
    targets = {
        f"sediment-{job}": [service.announcement.metrics for service in services]
        for job, services in deployment.services.items()
    }
    targets["kube-state-metrics"] = [deployment.cluster.address]
    with Prometheus(directory / "prometheus", targets, factor) as prometheus:
        eventually(prometheus.is_scraping)
        yield prometheus


def _verify(deployment: Deployment) -> None:
    """Verify the tier as a whole, so that the age of that is known."""
    world = deployment.world
    command = [sys.executable, "-m", "services.cli", "reconcile"]
    addresses = ["--rsm", world.rsm.address, "--rlmm", world.rlmm.address]
    done = subprocess.run([*command, *addresses], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AlertError(f"sediment reconcile ended with {done.returncode}: {done.stderr}")


def _all_rounds(
    deployment: Deployment, prometheus: Prometheus, only: Sequence[str] | None
) -> list[Times]:
    known = {alert.name for alert in ALERTS}
    covered = {name for faults in ROUNDS for fault in faults for name in fault.alerts}
    if known != covered:
        raise AlertError(f"no fault for, or no alert named: {', '.join(known ^ covered)}")
    found: list[Times] = []
    _print(f"{'alert':28} {'fires':>8} {'clears':>8}  fault")
    for faults in ROUNDS:
        chosen = [f for f in faults if only is None or not set(only).isdisjoint(f.alerts)]
        for times in _round(deployment, prometheus, chosen):
            found.append(times)
            _print(
                f"{times.alert:28} {times.fires_s:6.1f} s {times.clears_s:6.1f} s  {times.fault}"
            )
    if problems := prometheus.problems():
        raise AlertError(f"Prometheus could not evaluate: {problems}")
    return found


def _round(
    deployment: Deployment, prometheus: Prometheus, faults: Sequence[Fault]
) -> Iterator[Times]:
    """Let the faults happen together, and wait for their alerts; then end them, and wait again."""
    if before := prometheus.firing():
        raise AlertError(f"fires without a fault: {before}")
    wanted = {name: fault.what for fault in faults for name in fault.alerts}
    with ExitStack() as ending:
        began_s = time.monotonic()
        for fault in faults:
            ending.enter_context(fault.happens(deployment))
        fires = _wait(prometheus, set(wanted), began_s, is_firing=True)
    ended_s = time.monotonic()
    # The others that fired are consequences of the same faults, and have to clear, too.
    names = {alert.name for alert in ALERTS}
    clears = _wait(prometheus, names, ended_s, is_firing=False)
    for name, what in wanted.items():
        yield Times(name, what, fires[name], clears[name])


def _wait(
    prometheus: Prometheus, names: set[str], since_s: float, *, is_firing: bool
) -> dict[str, float]:
    """Return for each alert when it first was in this state, seconds."""
    seen: dict[str, float] = {}
    while True:
        firing = prometheus.firing()
        for name in names:
            if (name in firing) is not is_firing:
                if not is_firing:  # it was quiet for a moment, as its expression came and went
                    seen.pop(name, None)
            elif name not in seen:
                seen[name] = time.monotonic() - since_s
        if seen.keys() == names:
            return seen
        if time.monotonic() - since_s > _DEADLINE_S:
            state = "fire" if is_firing else "clear"
            raise AlertError(
                f"did not {state} in {_DEADLINE_S:.0f} s: {sorted(names - seen.keys())}"
            )
        Event().wait(_POLL_S)


def _expect_silence(deployment: Deployment, prometheus: Prometheus, lasts_s: float) -> None:
    """Roll, copy and read without a fault."""
    loop = ReadLoop(deployment.rlm.address, deployment.name("cold"), 0, 0.1)
    broker = RollingBroker([deployment.folder("steady")], SEGMENT_BYTES, 0.5)
    until_s = time.monotonic() + lasts_s
    with loop, broker:
        while time.monotonic() < until_s:
            if firing := prometheus.firing():
                raise AlertError(f"fires without a fault: {firing}")
            Event().wait(1.0)
    good = sum(read.is_good for read in loop.reads)
    _print(f"silent for {lasts_s:.0f} s: {broker.rolled} segments rolled, {good} good reads")
    if good < len(loop.reads):
        raise AlertError(f"{len(loop.reads) - good} reads failed")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
