"""Restore partitions into a broker's log directory: `sediment restore`."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from threading import Event, Lock

import typer

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.cli.command import argument, option, toggle
from services.cli.connections import Call, command_group, with_services
from services.cli.offsets import TIME_HELP, time_ms
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, WATCHED_S, CommandError, progress, say
from services.cli.reconcile import Rate, pace_of
from services.cli.restore_plans import RestoreRequest, plan_restores
from services.cli.tables import Wide
from services.common.quantities import counted
from services.rlm.kafka_log.log_dir import read_cluster_id
from services.rpc.client.direct import DirectReader
from services.views.documents import Json, fields_as_json
from services.views.texts import partition_text, size_text
from services.workflows.restore import PartitionRestore, RestoredLog, RestorePlan
from services.workflows.restore_files import locked

app = command_group()

_AT_ONCE = 4
"""Partitions that are restored at the same time."""
_COLUMNS = ("partition", "offsets", "segments", "size", "as", Wide("resumed"))

EXIT_INTERRUPTED = 130
_INTERRUPTED = "interrupted; finished segments stay: run the command again"
Outcome = tuple[RestorePlan, RestoredLog | Exception]


@app.command()
@with_services("rsm", "rlmm")
def restore(
    call: Call,
    partitions: list[str] = argument(
        "For example orders-0, or TOPIC_ID:orders-0 of a topic that was deleted.",
        metavar="TOPIC-PARTITION",
    ),
    directory: Path = argument("The log directory of a broker that is stopped.", metavar="DIR"),
    as_topic: str = option(
        "Into this topic, which the cluster has, empty. Default: the same topic, of which "
        "the cluster still has the name and id.",
        "--as",
        default="",
        metavar="NEW-TOPIC",
    ),
    from_offset: int | None = option("The first offset.", "--from", min=0, metavar="OFFSET"),
    to_offset: int | None = option(
        "End before it, between two batches.", "--to", min=1, metavar="OFFSET"
    ),
    before: str | None = option(
        "End before the first batch with a record of this time or later. " + TIME_HELP,
        metavar="TIME",
    ),
    local: Path | None = option(
        "A log directory, or a copy of one, for what is not in the tier.", metavar="DIR"
    ),
    kept: bool = toggle("--kept", "Also what a broker deleted and the store still keeps."),
    allow_holes: bool = toggle("--allow-holes", "Restore also if offsets are missing."),
    rate: Rate = 0,
) -> None:
    """Restore partitions from the tier into a broker's log directory.

    Writes segments, indexes, leader epochs, producer snapshots and the
    directory's checkpoints. Each batch is verified. A run that did not end
    is continued by the same command, and the broker does not start before.

    \b
    Exit codes:
      1    some partitions could not be restored; each is named
      3    a service failed or the disk is full; run the command again
      130  interrupted; run the command again
    """
    read_cluster_id([directory])
    end_ms = None if before is None else time_ms(before)
    request = RestoreRequest(
        directory, as_topic, local, from_offset, to_offset, end_ms, kept, allow_holes
    )
    with (
        call.rsm_clients() as (storage, _),
        call.rlmm_client() as metadata,
        locked(directory),
        closing(DirectReader(storage)) as reader,
    ):
        with progress(every_s=WATCHED_S) as show:
            plans = plan_restores((storage, reader, metadata), request, partitions, show)
        outcomes = [*restore_all(directory, plans, pace_of(rate).acquire)]
    done = [(plan, log) for plan, log in outcomes if isinstance(log, RestoredLog)]
    failed = [(plan, error) for plan, error in outcomes if isinstance(error, Exception)]
    failures = [f"{partition_text(plan.tp)}: {_failure_text(error)}" for plan, error in failed]
    table = ("", _COLUMNS, [_as_row(*each) for each in done])
    document = {"partitions": [_as_json(*each) for each in done], "failures": failures}
    call.show(document, table, lines=[line for each in done for line in _lines(*each)])
    for text in failures:
        say(text)
    if failed:
        is_passing = any(
            isinstance(error, OSError | RetriableRemoteStorageError) for _, error in failed
        )
        raise typer.Exit(EXIT_FAILED if is_passing else EXIT_PARTIAL)


def restore_all(
    directory: Path, plans: Sequence[RestorePlan], acquire: Callable[[int], object]
) -> Iterator[Outcome]:
    """Restore several partitions at the same time, and show how far they are."""
    planned = sum(
        max(piece.source.segment.segment_size_in_bytes, 0)
        for plan in plans
        for piece in plan.pieces
    )
    cancelled, lock, began_s, read = Event(), Lock(), time.monotonic(), 0

    def on_read(size_bytes: int) -> None:
        nonlocal read
        if cancelled.is_set():
            raise CommandError(_INTERRUPTED)
        acquire(size_bytes)
        with lock:
            read += size_bytes

    restores = [PartitionRestore(directory, plan, on_read) for plan in plans]
    for each in restores:
        each.check()
    with (
        progress(every_s=WATCHED_S, is_first_printed=True) as show,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        running: list[Future[RestoredLog]] = [pool.submit(each.run) for each in restores]
        try:
            while wait(running, timeout=1).not_done:
                per_s = int(read / max(time.monotonic() - began_s, 1))
                show(f"restored {size_text(read)} of {size_text(planned)}, {size_text(per_s)}/s")
        except KeyboardInterrupt as e:
            cancelled.set()
            raise CommandError(_INTERRUPTED, EXIT_INTERRUPTED) from e
    for plan, future in zip(plans, running, strict=True):
        error = future.exception()
        if error is not None and not isinstance(error, RemoteStorageError | OSError):
            raise error
        yield plan, future.result() if error is None else error


def _failure_text(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error}; finished segments stay: free space, and run the command again"


def _lines(plan: RestorePlan, log: RestoredLog) -> Iterator[str]:
    """Name what a reader of the restored log would wonder at."""
    name = partition_text(plan.tp)
    for first, last in plan.missing:
        yield f"{name}: offsets {first} to {last} are missing"
    if log.open_transactions:
        first = min(log.open_transactions.values())
        yield (
            f"{name}: {counted(len(log.open_transactions), 'transaction')} open at the end: "
            f"read_committed consumers stop at offset {first} until they are aborted "
            f"(kafka-transactions.sh abort --topic {plan.tp.topic} --partition "
            f"{plan.tp.partition} --start-offset N)"
        )


def _as_row(plan: RestorePlan, log: RestoredLog) -> tuple[object, ...]:
    return (
        partition_text(plan.source),
        f"{log.start_offset}-{log.end_offset - 1}",
        log.segments,
        size_text(log.size_bytes),
        partition_text(plan.tp),
        log.resumed_segments,
    )


def _as_json(plan: RestorePlan, log: RestoredLog) -> Json:
    opened = [
        {"producer_id": id, "start_offset": first} for id, first in log.open_transactions.items()
    ]
    return {
        **fields_as_json(plan.source),
        "restored_as": fields_as_json(plan.tp),
        **fields_as_json(
            log, "start_offset", "end_offset", "segments", "size_bytes", "resumed_segments"
        ),
        "missing": [{"start_offset": first, "end_offset": last} for first, last in plan.missing],
        "open_transactions": opened,
    }
