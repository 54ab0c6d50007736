"""The connection to PostgreSQL ends exactly while COMMIT is under way: did it happen or not?

RLMM cannot know. Asked again under the same request id it answers with the one change that there
is, whether the first attempt made it or the second.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from sqlalchemy import Engine, make_url

from services.api.calls import MutationContext
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    RemoteLogMetadataManager,
    SegmentUpdate,
)
from services.api.segments import RemoteLogSegmentMetadataUpdate, RemoteLogSegmentState
from services.local.postgres import EmbeddedPostgres
from services.local.process import LOOPBACK
from services.rlmm.database.engine import create_database_engine
from tests.deep.linearizability.checker import check
from tests.deep.linearizability.client import ask
from tests.deep.linearizability.deployment import trail_of
from tests.deep.linearizability.draws import nth_segment, segment_uuid
from tests.deep.linearizability.history import History, Recorder
from tests.deep.linearizability.operations import (
    Add,
    Announce,
    Announced,
    ListSegments,
    Lost,
    Mutation,
    Operation,
    PutDeletion,
    RaiseLogStart,
    Reply,
    ResetLeaderEpoch,
    Update,
    UpdateBatch,
)
from tests.deep.linearizability.postgres_proxy import (
    AFTER_COMMIT,
    BEFORE_COMMIT,
    COMMIT,
    PostgresProxy,
)
from tests.deep.linearizability.stories import applied
from tests.deep.model.kafka_cache import DELETE_STARTED, FINISHED
from tests.deep.model.partition import MARKED
from tests.harness.faults import Cut
from tests.harness.processes import running_rlmm

CUTS = {"before COMMIT is passed on": BEFORE_COMMIT, "before its answer is": AFTER_COMMIT}


@dataclass
class Client:
    """One client of one partition, which writes down what it sees."""

    rlmm: RemoteLogMetadataManager
    engine: Engine
    tp: TopicIdPartition
    recorder: Recorder = field(default_factory=Recorder)

    def ask(self, operation: Operation) -> Reply:
        return self.recorder.perform(
            "a", str(self.tp), operation, lambda: ask(self.rlmm, self.tp, operation)
        )

    @property
    def revision(self) -> int:
        """What the audit trail has come to."""
        return len(trail_of(self.engine, self.tp))

    def assert_linearizable(self) -> None:
        self.ask(ListSegments())
        trail = trail_of(self.engine, self.tp)
        check(History(self.recorder.records(), {str(self.tp): trail}))


@pytest.fixture(scope="module")
def database(postgres: EmbeddedPostgres, migrated_database: str) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    yield postgres.create_database(name, template=migrated_database)
    postgres.drop_database(name)


@pytest.fixture(scope="module")
def proxy(postgres: EmbeddedPostgres) -> Iterator[PostgresProxy]:
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
    client = Client(rlmm, engine, TopicIdPartition(uuid4(), "orders", 0))
    for number in range(3):
        client.ask(Add(nth_segment(client.tp, number)))
    for number in range(2):
        client.ask(Update(moved(client.tp, number, FINISHED)))
    yield client
    engine.dispose()


def moved(tp: TopicIdPartition, number: int, state: RemoteLogSegmentState) -> SegmentUpdate:
    """Under a request id of its own."""
    segment_id = RemoteLogSegmentId(tp, segment_uuid(number))
    update = RemoteLogSegmentMetadataUpdate(segment_id, 6_000, state, broker_id=1)
    return SegmentUpdate(update, MutationContext(request_id=f"{number} to {state.value}"))


WHY = MutationContext(request_id="once")
CHANGES: dict[str, Callable[[TopicIdPartition], Mutation]] = {
    "add": lambda tp: Add(nth_segment(tp, 3), WHY),
    "finish": lambda tp: Update(moved(tp, 2, FINISHED)),
    "start deletion": lambda tp: Update(moved(tp, 0, DELETE_STARTED)),
    "batch": lambda tp: UpdateBatch(
        (moved(tp, 0, DELETE_STARTED), moved(tp, 2, FINISHED), moved(tp, 1, DELETE_STARTED))
    ),
    "batch of deletions": lambda tp: UpdateBatch(
        (moved(tp, 0, DELETE_STARTED), moved(tp, 1, DELETE_STARTED))
    ),
    "mark the partition": lambda tp: PutDeletion(
        RemotePartitionDeleteMetadata(tp, MARKED, 7_000, broker_id=1), WHY
    ),
    "raise the log start": lambda tp: RaiseLogStart(5, WHY),
    "reset the leader epoch": lambda tp: ResetLeaderEpoch(7, WHY),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_repeated_under_its_request_id_a_change_is_made_once_and_answered_as_applied(
    client: Client,
    proxy: PostgresProxy,
    change: Callable[[TopicIdPartition], Mutation],
    cut: Cut,
) -> None:
    operation, before, cuts_before = change(client.tp), client.revision, proxy.cuts
    count = len(operation.items) if isinstance(operation, UpdateBatch) else 1
    once = applied(*range(before + 1, before + count + 1))
    proxy.faults.add(cut, operation=COMMIT)

    reply = client.ask(operation)
    assert proxy.cuts == cuts_before + 1, reply
    assert isinstance(reply, Lost) or reply == once
    assert client.revision == before + (count if cut == AFTER_COMMIT else 0)
    client.ask(ListSegments())  # shows what was answered, if anything was

    assert client.ask(operation) == once
    assert client.ask(operation) == once
    assert client.revision == before + count
    client.assert_linearizable()


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_an_announcement_that_is_repeated_is_one_event(
    client: Client, proxy: PostgresProxy, cut: Cut
) -> None:
    operation, before = Announce(PartitionLeadership(client.tp, 5), broker_id=1), client.revision
    proxy.faults.add(cut, operation=COMMIT)
    client.ask(operation)
    assert client.ask(operation) == Announced()
    assert client.revision == before + 1
    client.assert_linearizable()


def test_only_commits_that_were_asked_for_are_cut(client: Client, proxy: PostgresProxy) -> None:
    commits, cuts = proxy.commits, proxy.cuts
    assert client.ask(Add(nth_segment(client.tp, 3))) == applied(client.revision)
    client.ask(ListSegments())
    assert (proxy.commits, proxy.cuts) == (commits + 1, cuts)
