"""`sediment up`: the embedded stack in the foreground."""

import signal
from dataclasses import asdict
from pathlib import Path
from threading import Event

from services.cli.output import EXIT_FAILED, CommandError, Format, print_json, print_table, say
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import find_partitions

WATCH_INTERVAL_S = 1.0


def run(log_dirs: list[Path], data_dir: Path | None, fresh: bool, output: Format) -> None:
    """Return on SIGTERM or SIGINT, with everything stopped and the data kept.

    Raises:
        LogDirError: RLM could not start on these.
        CommandError: a part of it ended by itself; the rest is stopped too.
    """
    if log_dirs:
        find_partitions(log_dirs)
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    say("starting PostgreSQL, an S3 server and the three services ...")
    with EmbeddedStack(data_dir, log_dirs=log_dirs, fresh=fresh) as stack:
        endpoints = asdict(stack.endpoints)
        if output is Format.JSON:
            print_json(endpoints)
        else:
            print_table("Sediment is up; Ctrl-C stops it", ("what", "where"), endpoints.items())
        while not stopping.wait(WATCH_INTERVAL_S):
            if ended := stack.ended():
                raise CommandError(f"a part has ended, see {', '.join(ended)}", EXIT_FAILED)
        say("stopping ...")
