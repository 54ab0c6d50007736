"""Provide RLMM as a process of its own, with its raw channel and a view of its database."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

from services.api.ids import TopicIdPartition
from services.common.client_security import PLAINTEXT
from services.rlmm.database.engine import create_database_engine
from services.rpc.client.channel import open_channel
from tests.deep.fuzzing.campaign import Target
from tests.deep.fuzzing.database_digest import DatabaseDigest
from tests.deep.fuzzing.world import make_world
from tests.harness.processes import running_rlmm

_ANYBODY = TopicIdPartition(uuid4(), "orders", 0)


@contextmanager
def running_rlmm_target(database_url: str, directory: Path) -> Iterator[Target]:
    """Over a migrated database; stopped at the end."""
    engine = create_database_engine(database_url)
    autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")
    with (
        running_rlmm(database_url, directory) as process,
        open_channel(process.address, PLAINTEXT) as channel,
        autocommitting.connect() as connection,
    ):
        yield Target(
            channel,
            partial(make_world, process.client),
            DatabaseDigest(connection).take,
            lambda: process.client.is_ready(_ANYBODY),
            streams_are_atomic=False,
        )
    engine.dispose()
