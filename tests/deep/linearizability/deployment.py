"""RLMM as it is deployed, two processes over one PostgreSQL, with a proxy in every connection.

clients ── TcpProxy ── RLMM ──┐
                              ├── PostgresProxy ── PostgreSQL
clients ── TcpProxy ── RLMM ──┘
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, make_url

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.client_security import PLAINTEXT
from services.local.process import LOOPBACK
from services.local.stack import ServiceProcess, rlmm_settings
from services.rlmm.database import schema
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from tests.deep.histories.history import TrailEntry, trail_of
from tests.deep.linearizability.postgres_proxy import PostgresProxy
from tests.harness.local_servers import DatabaseServer
from tests.harness.proxy import TcpProxy

DATABASE = "histories"
PROCESSES = 2


@dataclass(frozen=True)
class Deployment:
    """Attributes:
    postgres: its own, which tests may kill.
    postgres_proxy: between both RLMMs and PostgreSQL.
    client_proxies: before each RLMM.
    engine: straight to the database, for what a test reads without RLMM.
    """

    postgres: DatabaseServer
    postgres_proxy: PostgresProxy
    rlmms: Sequence[ServiceProcess]
    client_proxies: Sequence[TcpProxy]
    engine: Engine

    @contextmanager
    def clients(self) -> Iterator[list[RemoteLogMetadataManager]]:
        """A client of each RLMM, with connections of its own."""
        clients: list[RemoteLogMetadataManager] = []
        with ExitStack() as stack:
            for proxy in self.client_proxies:
                channel = stack.enter_context(open_channel(proxy.address, PLAINTEXT))
                clients.append(RemoteLogMetadataManagerClient(channel, proxy.address))
            yield clients

    def trail(self, tp: TopicIdPartition) -> list[TrailEntry]:
        """The partition's audit trail, read from the database itself."""
        self.engine.dispose()  # its connections may have died with PostgreSQL
        return trail_of(self.engine, tp)


@contextmanager
def running_deployment(directory: Path) -> Iterator[Deployment]:
    """Everything started, with its data in `directory`; ended however it was left.

    `directory` must be open to PostgreSQL's own user, as tests.conftest's server_directory is.
    """
    with ExitStack() as stack:
        postgres = DatabaseServer(directory / "postgres")
        postgres.start()
        stack.callback(postgres.kill)
        database_url = postgres.create_database(DATABASE)
        schema.upgrade(database_url)
        postgres_proxy = stack.enter_context(PostgresProxy(f"{LOOPBACK}:{postgres.port}"))
        url = make_url(database_url).set(port=int(postgres_proxy.address.rpartition(":")[2]))
        settings = rlmm_settings(url.render_as_string(hide_password=False))
        rlmms = []
        for n in range(PROCESSES):
            rlmm = ServiceProcess("rlmm", settings, directory / f"rlmm-{n}")
            rlmm.start()
            stack.callback(rlmm.kill)
            rlmms.append(rlmm)
        proxies = [stack.enter_context(TcpProxy(rlmm.address)) for rlmm in rlmms]
        engine = create_database_engine(database_url)
        stack.callback(engine.dispose)
        yield Deployment(postgres, postgres_proxy, rlmms, proxies, engine)
