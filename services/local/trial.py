"""Run PostgreSQL and an S3 store for a trial, on fixed ports that other machines reach.

`python -m services.local.trial SECRETS DIRECTORY` reads the files password, access-key and
secret-key of SECRETS, keeps its data in DIRECTORY, and listens once the schema and the bucket are
there. It ends when one of the servers ends. Not for production: one copy of the data, no TLS.
"""

import asyncio
import signal
import sys
from pathlib import Path

from services.common.bounded_file import SecretFileError, read_secret
from services.local.postgres import EmbeddedPostgres
from services.local.process import LOOPBACK, ProcessError
from services.local.seaweedfs import S3Keys, SeaweedFS
from services.local.stack import (
    BUCKET,
    DATABASE,
    LOGIN,
    READER,
    UPGRADE_SCHEMA,
    rlmm_settings,
    run_to_end,
)

POSTGRES_PORT = 5432
STORE_PORT = 9000

_EVERY_ADDRESS = "0.0.0.0"
_PIECE_BYTES = 65_536
_POLL_S = 1.0


def main(secrets: Path, directory: Path) -> None:
    """Run both servers until SIGTERM or until one of them ends."""
    # Process 1 of a container ignores a signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    password_file = secrets / "password"
    try:
        password = read_secret(password_file)
        keys = S3Keys(read_secret(secrets / "access-key"), read_secret(secrets / "secret-key"))
    except SecretFileError as e:
        sys.exit(str(e))
    directory.mkdir(parents=True, exist_ok=True)
    with (
        EmbeddedPostgres(directory / "postgres") as postgres,
        SeaweedFS(directory / "s3", keys) as store,
    ):
        postgres.ensure_owned_database(DATABASE, LOGIN, password, READER)
        url = f"postgresql+psycopg://{LOGIN}@{LOOPBACK}:{postgres.port}/{DATABASE}"
        settings = {**rlmm_settings(url), "RLMM_DATABASE_PASSWORD_FILE": str(password_file)}
        run_to_end(UPGRADE_SCHEMA, settings)
        store.endpoint.ensure_bucket(BUCKET)
        asyncio.run(_serve(postgres, store))


async def _serve(postgres: EmbeddedPostgres, store: SeaweedFS) -> None:
    """Forward connections to the servers, which listen on the loopback, as long as both run.

    Raises:
        ProcessError: a server ended.
    """
    await _forward(POSTGRES_PORT, postgres.port)
    await _forward(STORE_PORT, store.ports["s3"])
    while postgres.is_running() and store.is_running():
        await asyncio.sleep(_POLL_S)
    raise ProcessError("PostgreSQL or the S3 store ended; its log is in its directory")


async def _forward(port: int, target_port: int) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(LOOPBACK, target_port)
        await asyncio.gather(_pump(reader, target_writer), _pump(target_reader, writer))

    await asyncio.start_server(connect, _EVERY_ADDRESS, port)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Move bytes one way until their sender has ended."""
    try:
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # the other side has gone; closing ends the stream
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
