"""Rounds of concurrent clients and faults; each round is a history that is checked."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from threading import Event

from services.api.calls import MutationOutcome
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from tests.deep.linearizability.checker import check
from tests.deep.linearizability.client import ask
from tests.deep.linearizability.deployment import Deployment
from tests.deep.linearizability.draws import (
    LAST_OFFSET,
    LEADER_EPOCHS,
    UsedPartition,
    new_partitions,
    nth_segment,
)
from tests.deep.linearizability.faults import FAULTS
from tests.deep.linearizability.history import History, Recorder
from tests.deep.linearizability.operations import (
    Add,
    Changed,
    HighestOffset,
    ListSegments,
    LogSize,
    LookUp,
    Lost,
    Operation,
    Refused,
)
from tests.deep.linearizability.postgres_proxy import AFTER_COMMIT, COMMIT
from tests.deep.linearizability.search import NotLinearizableError, UndecidedError
from tests.deep.linearizability.workload import RandomClient
from tests.harness.eventually import eventually

CLIENTS = 6
NUMBERS_OF_NO_CLIENT = 10_000
"""Segments from here on are added by no random client."""
LIVELY_PARTITIONS, DYING_PARTITIONS = 2, 1
_BUSY_MACHINE_MS = 120_000


@dataclass
class Totals:
    """What a campaign has done so far.

    Attributes:
        changes: mutations that changed something.
        lost_changes: of these, the ones that only a lost call explains: nobody repeated it.
        kinds: answered operations, by kind.
        branches: of all searches.
    """

    histories: int = 0
    completed: int = 0
    changes: int = 0
    lost: int = 0
    lost_changes: int = 0
    repeats: int = 0
    refusals: int = 0
    branches: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.histories} histories (one for each partition), all linearizable",
                f"{self.completed} operations completed: {_words(self.kinds)}",
                f"{self.changes} changes, {self.repeats} repeats, {self.refusals} refusals",
                f"{self.lost} replies lost, {self.lost_changes} changes explained by them alone",
                f"faults: {_words(self.faults)}",
                f"{self.branches} branches searched",
            ]
        )


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def run_round(
    deployment: Deployment, seed: int, faults: Sequence[str], between: int, totals: Totals
) -> History:
    """Clients work on new partitions while `faults` happen, `between` answered operations apart.

    Raises:
        NotLinearizableError, UndecidedError: a note says where the history was saved.
    """
    used = new_partitions(f"round-{seed}", LIVELY_PARTITIONS, DYING_PARTITIONS)
    recorder, stopping = Recorder(), Event()
    with ExitStack() as stack:
        connections = [stack.enter_context(deployment.clients()) for _ in range(CLIENTS)]
        pool = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        stack.callback(stopping.set)  # before the pool waits for its threads
        running = []
        for n, rlmms in enumerate(connections):
            random = Random(f"{seed}-{n}")
            client = RandomClient(f"client-{n}", random, [*rlmms], used, recorder, stopping)
            running.append(pool.submit(client.run))
        _wait_for_more(recorder, between)
        for fault in faults:
            FAULTS[fault](deployment)
            totals.faults[fault] += 1
            _wait_for_more(recorder, between)
        stopping.set()
        for future in running:
            future.result()
        _lose_a_change(deployment, connections[0][0], used[0], recorder)
        _read_everything(connections[0][0], used, recorder)
    history = History(recorder.records(), {each.name: deployment.trail(each.tp) for each in used})
    _check(history, totals)
    return history


def _wait_for_more(recorder: Recorder, count: int) -> None:
    goal = recorder.completed + count
    eventually(lambda: recorder.completed >= goal, _BUSY_MACHINE_MS, poll_ms=50)


def _lose_a_change(
    deployment: Deployment,
    rlmm: RemoteLogMetadataManager,
    partition: UsedPartition,
    recorder: Recorder,
) -> None:
    """The answer to one change is cut off and nobody asks again: only the search explains it."""
    proxy, numbers = deployment.postgres_proxy, count(NUMBERS_OF_NO_CLIENT)
    cuts_before = proxy.cuts
    proxy.faults.add(AFTER_COMMIT, operation=COMMIT)

    def is_lost() -> bool:  # a connection that broke earlier may be met first
        tp, change = partition.tp, Add(nth_segment(partition.tp, next(numbers)))
        recorder.perform("careless", str(tp), change, lambda: ask(rlmm, tp, change))
        return proxy.cuts > cuts_before

    eventually(is_lost, _BUSY_MACHINE_MS)


def _read_everything(
    rlmm: RemoteLogMetadataManager, used: Sequence[UsedPartition], recorder: Recorder
) -> None:
    """Every view of every partition, after all: it must be what the changes add up to."""
    for partition in used:
        for operation in _all_reads():
            answered = partial(_is_answered, rlmm, partition.tp, operation, recorder)
            eventually(answered, _BUSY_MACHINE_MS)


def _is_answered(
    rlmm: RemoteLogMetadataManager, tp: TopicIdPartition, operation: Operation, recorder: Recorder
) -> bool:
    reply = recorder.perform("last", str(tp), operation, lambda: ask(rlmm, tp, operation))
    return not isinstance(reply, Lost)


def _all_reads() -> list[Operation]:
    reads: list[Operation] = [ListSegments()]
    for epoch in (*LEADER_EPOCHS, LEADER_EPOCHS[-1] + 1):
        reads += [ListSegments(epoch), HighestOffset(epoch), LogSize(epoch)]
        reads += [LookUp(epoch, offset) for offset in range(5, LAST_OFFSET + 1, 10)]
    return reads


def _check(history: History, totals: Totals) -> None:
    try:
        orders = check(history)
    except (NotLinearizableError, UndecidedError) as e:
        with tempfile.NamedTemporaryFile(prefix="history-", suffix=".jsonl", delete=False) as kept:
            history.save(Path(kept.name))
        e.add_note(f"the history: python -m tests.deep.linearizability --check {kept.name}")
        raise
    totals.histories += len(orders)
    for order in orders.values():
        totals.changes += len(order.changes)
        totals.lost_changes += sum(record.is_lost for record in order.changes)
        totals.branches += order.nodes
    for record in history.records:
        if record.is_lost:
            totals.lost += 1
            continue
        totals.completed += 1
        totals.kinds[record.operation.kind] += 1
        match record.reply:
            case Refused():
                totals.refusals += 1
            case Changed(outcomes):
                totals.refusals += sum(isinstance(each, Refused) for each in outcomes)
                totals.repeats += sum(
                    isinstance(each, MutationOutcome) and not each.applied for each in outcomes
                )
