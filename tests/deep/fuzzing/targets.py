"""RLMM as a process of its own, with its raw channel and a view of its database."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.common.client_security import PLAINTEXT
from services.rlmm.db import create_database_engine
from services.rpc.client.channel import open_channel
from tests.deep.fuzzing.campaign import Target
from tests.deep.fuzzing.database_digest import DatabaseDigest
from tests.harness.rlmm_process import running_rlmm


@contextmanager
def running_target(database_url: str, directory: Path) -> Iterator[Target]:
    """Over a migrated database; stopped at the end."""
    engine = create_database_engine(database_url)
    autocommitting = engine.execution_options(isolation_level="AUTOCOMMIT")
    with (
        running_rlmm(database_url, directory) as process,
        open_channel(process.address, PLAINTEXT) as channel,
        autocommitting.connect() as connection,
    ):
        yield Target(channel, process.client, DatabaseDigest(connection))
    engine.dispose()
