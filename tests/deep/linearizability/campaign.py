"""Rounds of concurrent clients and faults; each round is a history that is checked."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Event

from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.deep.histories.checker import check
from tests.deep.histories.draws import EPOCHS, LAST_OFFSET, SharedModel
from tests.deep.histories.history import History, Recorder
from tests.deep.histories.operations import (
    Add,
    HighestOffset,
    ListSegments,
    LogSize,
    LogStart,
    LookUp,
    Lost,
    Operation,
    changes_in,
    outcomes_in,
)
from tests.deep.histories.search import NotLinearizableError, UndecidedError
from tests.deep.histories.space import Space
from tests.deep.linearizability.deployment import Deployment
from tests.deep.linearizability.faults import FAULTS
from tests.deep.linearizability.postgres_proxy import AFTER_COMMIT, COMMIT
from tests.deep.linearizability.workload import RandomClient
from tests.harness.eventually import eventually

CLIENTS = 6
NUMBERS_OF_NO_CLIENT = 10_000
"""Segments from here on are added by no random client."""
PARTITIONS = 3
DYING = (2,)
_BUSY_MACHINE_MS = 120_000
Totals = Counter[str]
"""What a campaign has done: histories, operations that were answered (by kind too), changes,
changes that only a lost call explains, lost replies, repeats, refusals, faults, branches."""


def run_round(
    deployment: Deployment, seed: int, faults: Sequence[str], between: int, totals: Totals
) -> History:
    """Let clients work on new partitions while faults happen; check the history.

    Args:
        between: how many operations are answered between two faults.

    Raises:
        NotLinearizableError, UndecidedError: a note says where the history was saved.
    """
    space = Space.of_partitions(PARTITIONS)
    shared = SharedModel(space, DYING)
    recorder, stopping = Recorder(), Event()
    with ExitStack() as stack:
        connections = [stack.enter_context(deployment.clients()) for _ in range(CLIENTS)]
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        stack.callback(stopping.set)  # before the pool waits for its threads
        running = []
        for n, rlmms in enumerate(connections):
            random = Random(f"{seed}-{n}")
            client = RandomClient(f"client-{n}", random, [*rlmms], shared, recorder, stopping)
            running.append(pool.submit(client.run))
        _wait_for_more(recorder, between)
        for fault in faults:
            FAULTS[fault](deployment)
            totals[f"fault {fault}"] += 1
            _wait_for_more(recorder, between)
        stopping.set()
        for future in running:
            future.result()
        _lose_a_change(deployment, connections[0][0], space, recorder)
        _read_everything(connections[0][0], space, recorder)
    trails = {tp: deployment.trail(each) for tp, each in enumerate(space.partitions)}
    history = History(space, recorder.records(), trails)
    _check(history, totals)
    return history


def _wait_for_more(recorder: Recorder, count: int) -> None:
    goal = recorder.completed + count
    eventually(lambda: recorder.completed >= goal, _BUSY_MACHINE_MS, poll_ms=50)


def _lose_a_change(
    deployment: Deployment, rlmm: RemoteLogMetadataManager, space: Space, recorder: Recorder
) -> None:
    """Cut off the answer to one change, and do not repeat it: only the search explains it."""
    proxy, numbers = deployment.postgres_proxy, count(NUMBERS_OF_NO_CLIENT)
    cuts_before = proxy.cuts
    proxy.faults.add(AFTER_COMMIT, operation=COMMIT)

    def is_lost() -> bool:  # a connection that broke earlier may fail first
        add = Add(0, next(numbers), 0, 9, ((0, 0),))
        recorder.perform("careless", add, lambda: add.reply(rlmm, space))
        return proxy.cuts > cuts_before

    eventually(is_lost, _BUSY_MACHINE_MS)


def _read_everything(rlmm: RemoteLogMetadataManager, space: Space, recorder: Recorder) -> None:
    """Read every view of every partition, after all: it must be what the changes add up to."""
    for tp in range(PARTITIONS):
        for operation in _all_reads(tp):
            answered = partial(_is_answered, rlmm, space, operation, recorder)
            eventually(answered, _BUSY_MACHINE_MS)


def _is_answered(
    rlmm: RemoteLogMetadataManager, space: Space, operation: Operation, recorder: Recorder
) -> bool:
    reply = recorder.perform("last", operation, lambda: operation.reply(rlmm, space))
    return not isinstance(reply, Lost)


def _all_reads(tp: int) -> list[Operation]:
    reads: list[Operation] = [ListSegments(tp), LogStart(tp)]
    for epoch in (*EPOCHS, EPOCHS.stop):
        reads += [ListSegments(tp, epoch), HighestOffset(tp, epoch), LogSize(tp, epoch)]
        reads += [LookUp(tp, epoch, offset) for offset in range(5, LAST_OFFSET + 1, 10)]
    return reads


def _check(history: History, totals: Totals) -> None:
    try:
        orders = check(history)
    except (NotLinearizableError, UndecidedError) as e:
        with tempfile.NamedTemporaryFile(prefix="history-", delete=False) as saved:
            history.save(Path(saved.name))
        e.add_note(f"the history: python -m tests.deep.linearizability --check {saved.name}")
        raise
    totals["histories"] += len(orders)
    for order in orders.values():
        totals["changes"] += len(order.changes)
        totals["lost changes"] += sum(record.is_lost for record in order.changes)
        totals["branches"] += order.nodes
    for record in history.records:
        if record.is_lost:
            totals["lost"] += 1
            continue
        totals["answered"] += 1
        totals[f"operation {type(record.operation).__name__}"] += 1
        totals["refusals"] += sum(isinstance(each, type) for each in outcomes_in(record.reply))
        totals["repeats"] += sum(not each.applied for each in changes_in(record.reply))
