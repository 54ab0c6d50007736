"""The connection to PostgreSQL ends exactly while COMMIT is under way: did it happen or not?

RLMM cannot know. Asked again under the same request id it answers with the one change that there
is, whether the first attempt made it or the second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from uuid import uuid4

import pytest
from sqlalchemy import Engine, make_url

from services.api.calls import MutationContext
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentState
from services.local.process import LOOPBACK
from services.rlmm.database.engine import create_database_engine
from tests.contract.rlmm.segments import DELETE_STARTED, FINISHED, MARKED
from tests.deep.histories.checker import check
from tests.deep.histories.history import History, Recorder, trail_of
from tests.deep.histories.operations import (
    Lead,
    ListSegments,
    Lost,
    Move,
    MoveBatch,
    Operation,
    PutDeletion,
    RaiseLogStart,
    ReplaceData,
    ResetLeaderEpoch,
    outcomes_in,
)
from tests.deep.histories.space import Space
from tests.deep.histories.stories import add, applied
from tests.deep.linearizability.postgres_proxy import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    COMMIT,
    PostgresProxy,
)
from tests.harness.faults import Cut
from tests.harness.local_servers import DatabaseServer
from tests.harness.processes import running_rlmm

CUTS = {"before COMMIT is passed on": BEFORE_COMMIT, "before its answer is": AFTER_COMMIT}


@dataclass
class Client:
    """One client of one partition, which records what it receives."""

    rlmm: RemoteLogMetadataManager
    engine: Engine
    space: Space = field(default_factory=lambda: Space.of_partitions(1))
    recorder: Recorder = field(default_factory=Recorder)

    def call(self, operation: Operation) -> object:
        return self.recorder.perform("a", operation, lambda: operation.reply(self.rlmm, self.space))

    @property
    def revision(self) -> int:
        """Return the revision that the audit trail has come to."""
        return len(trail_of(self.engine, self.space.partitions[0]))

    def assert_linearizable(self) -> None:
        self.call(ListSegments(0))
        trail = trail_of(self.engine, self.space.partitions[0])
        check(History(self.space, self.recorder.records(), {0: trail}))


@pytest.fixture(scope="module")
def database(postgres: DatabaseServer, migrated_database: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name, template=migrated_database)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def proxy(postgres: DatabaseServer) -> Iterator[PostgresProxy]:
    with PostgresProxy(f"{LOOPBACK}:{postgres.port}") as proxy:
        yield proxy


@pytest.fixture(scope="module")
def rlmm(
    database: str, proxy: PostgresProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RemoteLogMetadataManager]:
    """A process, as deployed, that reaches PostgreSQL through the proxy."""
    url = make_url(database).set(port=int(proxy.address.rpartition(":")[2]))
    directory = tmp_path_factory.mktemp("ambiguous")
    with running_rlmm(url.render_as_string(hide_password=False), directory) as running:
        yield running.client


@pytest.fixture
def client(rlmm: RemoteLogMetadataManager, database: str) -> Iterator[Client]:
    """Of a partition with three segments: two finished, the last one started."""
    engine = create_database_engine(database)
    client = Client(rlmm, engine)
    for number in range(3):
        client.call(add(number, 10 * number, 10 * number + 9))
    client.call(replace(moved(0, FINISHED), custom_metadata=b"a"))
    client.call(moved(1, FINISHED))
    yield client
    engine.dispose()


def moved(number: int, state: RemoteLogSegmentState) -> Move:
    """Move a segment under a request id of its own."""
    return Move(0, number, state, why=MutationContext(request_id=f"{number} to {state.value}"))


WHY = MutationContext(request_id="once")
CHANGES: dict[str, Operation] = {
    "add": add(3, why=WHY),
    "finish": moved(2, FINISHED),
    "start deletion": moved(0, DELETE_STARTED),
    "batch": MoveBatch((moved(0, DELETE_STARTED), moved(2, FINISHED), moved(1, DELETE_STARTED))),
    "batch of deletions": MoveBatch((moved(0, DELETE_STARTED), moved(1, DELETE_STARTED))),
    "replace data": ReplaceData(0, 0, b"a", b"b", why=WHY),
    "mark the partition": PutDeletion(0, MARKED, why=WHY),
    "raise the log start": RaiseLogStart(0, 5, why=WHY),
    "reset the leader epoch": ResetLeaderEpoch(0, 7, why=WHY),
}


def _marks_of_the_first(operation: Operation) -> list[bool]:
    """Return for each change whether it marks the first segment, whose custom metadata is b"a"."""
    changes = operation.moves if isinstance(operation, MoveBatch) else (operation,)
    return [
        isinstance(each, Move) and (each.id, each.state) == (0, DELETE_STARTED) for each in changes
    ]


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("operation", CHANGES.values(), ids=CHANGES)
def test_repeated_under_its_request_id_a_change_is_made_once_and_answered_as_applied(
    client: Client, proxy: PostgresProxy, operation: Operation, cut: Cut
) -> None:
    before, cuts_before = client.revision, proxy.cuts
    count = len(operation.tps)
    once = tuple(
        replace(applied(before + 1 + place), custom_metadata=b"a" if is_mark_of_first else None)
        for place, is_mark_of_first in enumerate(_marks_of_the_first(operation))
    )
    proxy.faults.add(cut, operation=COMMIT)

    reply = client.call(operation)
    assert proxy.cuts == cuts_before + 1, reply
    assert isinstance(reply, Lost) or outcomes_in(reply) == once
    assert client.revision == before + (count if cut == AFTER_COMMIT else 0)
    client.call(ListSegments(0))  # shows what was answered, if anything was

    assert outcomes_in(client.call(operation)) == once
    assert outcomes_in(client.call(operation)) == once
    assert client.revision == before + count
    client.assert_linearizable()


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_an_announcement_that_is_repeated_is_one_event(
    client: Client, proxy: PostgresProxy, cut: Cut
) -> None:
    operation, before = Lead(((0, 5),)), client.revision
    proxy.faults.add(cut, operation=COMMIT)
    client.call(operation)
    assert client.call(operation) is None
    assert client.revision == before + 1
    client.assert_linearizable()


def test_only_commits_that_were_asked_for_are_cut(client: Client, proxy: PostgresProxy) -> None:
    commits, cuts = proxy.commits, proxy.cuts
    assert client.call(add(3)) == applied(client.revision)
    client.call(ListSegments(0))
    assert (proxy.commits, proxy.cuts) == (commits + 1, cuts)
