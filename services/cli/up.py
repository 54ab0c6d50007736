"""Run the embedded stack in the foreground: `sediment up`."""

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

from services.cli.command import option, toggle
from services.cli.connections import Call, address_of, command_group, with_services
from services.cli.output import print_json, print_line, say
from services.local.data_directory import Store
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import find_partitions

app = command_group()

WATCH_INTERVAL_S = 1.0
SAY_INTERVAL_S = 4.0


@app.command()
@with_services(has_data_dir=True)
def up(
    call: Call,
    log_dir: list[Path] | None = option(
        "A Kafka log directory for RLM to ship and serve; may be repeated."
    ),
    store: Store = option(
        "Which kind of object store runs. gcs and azure are emulators, built once: they need Go "
        "1.26, or Node.js 20 and npm. A data directory keeps the kind of its first run.",
        default=Store.S3,
    ),
    fresh: bool = toggle("--fresh", "Delete what earlier runs stored, then start."),
    tls: bool = toggle(
        "--tls",
        "Serve with TLS and a policy, by certificates of a throw-away authority; other "
        "commands find the operator's certificate by themselves.",
    ),
    listener: bool = toggle(
        "--listener",
        "Let RLM also serve kcat and other consumers of Kafka, at the address "
        "rlm_consumers; with --tls they need a certificate.",
    ),
    printed: str | None = option(
        "Print one value of the `sediment up` that runs, and end: rsm, rlm_consumers, "
        "s3_endpoint, credentials_file or another name that -o json has.",
        "--print",
        metavar="NAME",
    ),
) -> None:
    """Run PostgreSQL, an object store and the services on this machine.

    Runs in the foreground until Ctrl-C or SIGTERM and keeps its data, and its ports if they are
    free, for the next run. A part that ends is started again, up to three times in two minutes. It
    uses only a data directory that was new or empty at its first run; any other directory is
    refused and left unchanged, with --fresh too.

    Prints no secret: credentials_file names the file with the S3 keys and the database password,
    which only its user can read. With another store than s3 it has no S3 keys, s3_endpoint and
    s3_bucket are the address and the bucket or container of that store, and locations_file has what
    RSM opens it with.
    """
    if printed is not None:
        print_line([address_of(printed, call.data_dir)])
        return
    log_dirs = log_dir or []
    if log_dirs:
        find_partitions(log_dirs)  # refuse unusable directories before anything starts
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    server = "an S3 server" if store is Store.S3 else f"an emulator of {store}"
    say(f"starting PostgreSQL, {server} and the three services ...")
    with ExitStack() as running:
        made = EmbeddedStack(
            call.data_dir,
            log_dirs=log_dirs,
            fresh=fresh,
            store=store,
            with_tls=tls,
            with_listener=listener,
        )
        with _said_to_go_on("still starting"):
            stack = running.enter_context(made)
        if not tls:
            say("serving plaintext: every user of this machine can read and delete everything")
            say("with certificates: `sediment up --tls` (docs/run/security.md)")
        if call.is_json:
            print_json(asdict(stack.endpoints))
        beside = "" if call.data_dir is None else f" --data-dir {call.data_dir}"
        say(f"Sediment is up on {stack.endpoints.data_directory}; Ctrl-C stops it")
        say(f"in another terminal: `sediment status{beside}`")
        say(f"in a browser: `sediment console{beside}`")
        while not stopping.wait(WATCH_INTERVAL_S):
            for text in stack.watch():
                say(text)
        say("stopping ...")


@contextmanager
def _said_to_go_on(what: str) -> Iterator[None]:
    """Say every few seconds that the block runs: a build or a recovery may take minutes."""
    began_s, has_ended = time.monotonic(), Event()

    def repeat() -> None:
        while not has_ended.wait(SAY_INTERVAL_S):
            say(f"{what}: {time.monotonic() - began_s:.0f} s so far")

    Thread(target=repeat, name="progress", daemon=True).start()
    try:
        yield
    finally:
        has_ended.set()
