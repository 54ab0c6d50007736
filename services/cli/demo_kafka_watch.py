"""Looks at a partition again and again, draws it, and notices when nothing moves any more."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from threading import Event

from rich.console import Console, RenderableType
from rich.live import Live

from services.cli.demo_kafka_tier import TieredPartition, View
from services.cli.failures import EXIT_FAILED, CommandError
from services.cli.output import say
from services.local.kafka_broker import KafkaBroker
from services.rlm.kafka_log.log_dir import PartitionDir, find_partitions

POLL_S = 0.2
STUCK_AFTER_S = 60.0
_FOLDER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Watch:
    """A partition of a running broker, on the disk and in the tier."""

    broker: KafkaBroker
    partition: TieredPartition

    def looks(self, stuck: str, draw: Callable[[View], RenderableType]) -> Generator[View]:
        """What there is, again and again, drawn as it changes; where standard error is no terminal,
        nothing is drawn.

        Raises:
            CommandError: nothing moved for STUCK_AFTER_S; says `stuck`.
        """
        console = Console(stderr=True)
        last_change, before = time.monotonic(), None
        with Live(console=console, transient=True, auto_refresh=False) as live:
            while True:
                view = self.partition.look()
                if console.is_terminal:
                    live.update(draw(view), refresh=True)
                yield view
                now = (view.disk, view.rows, view.objects)
                if now != before:
                    last_change, before = time.monotonic(), now
                if time.monotonic() - last_change > STUCK_AFTER_S:
                    raise self.is_stuck(stuck)
                Event().wait(POLL_S)

    def until(self, holds: Callable[[], bool], stuck: str) -> None:
        """Wait until it holds.

        Raises:
            CommandError: it did not within STUCK_AFTER_S; says `stuck`.
        """
        deadline = time.monotonic() + STUCK_AFTER_S
        while not holds():
            if time.monotonic() > deadline:
                raise self.is_stuck(stuck)
            Event().wait(POLL_S)

    def is_stuck(self, what: str) -> CommandError:
        reason = f"{what}: nothing moved for {STUCK_AFTER_S:.0f} s; {_complaints(self.broker)}"
        return CommandError(reason, EXIT_FAILED)


def timed(done: str, act: Callable[[], None]) -> None:
    """Do it, and say how long it took."""
    started = time.monotonic()
    act()
    say(f"   {done} after {time.monotonic() - started:.0f} s")


def folder_of(broker: KafkaBroker, topic: str) -> PartitionDir:
    """The topic's one partition, once the broker has made its folder.

    Raises:
        CommandError: it has made none in time.
    """
    deadline = time.monotonic() + _FOLDER_TIMEOUT_S
    while time.monotonic() < deadline:
        for name, partition in find_partitions([broker.log_dir]).partitions.items():
            if name.topic == topic:
                return partition
        Event().wait(POLL_S)
    raise CommandError(f"the broker made no folder for {topic}-0", EXIT_FAILED)


def _complaints(broker: KafkaBroker) -> str:
    """What the broker warned of last, for a message of ours."""
    lines = (broker.directory / "broker.log").read_text(errors="replace").splitlines()
    complaints = [line for line in lines if " WARN " in line or " ERROR " in line]
    if not complaints:
        return "the broker's log warns of nothing"
    return f"the broker's log warns last: {complaints[-1]}"
