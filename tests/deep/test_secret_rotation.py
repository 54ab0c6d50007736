"""Test that S3 keys and the database password are replaced under load without a failed request."""

import json
import os
import secrets
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql

from services.api.segments import RemoteLogSegmentState
from services.api.watches import WatchedPartition
from services.common.client_security import PLAINTEXT
from services.local.data_directory import KEYS, Store, write_secret
from services.local.seaweedfs import S3Endpoint, SeaweedFS
from services.local.stack import LOGIN, EmbeddedStack
from services.rpc.client.channel import open_channel
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from tests.contract.remote_storage_manager_contract import fetched
from tests.harness.eventually import eventually
from tests.harness.tier import SmallTier, a_topic, segment

pytestmark = pytest.mark.deep

ROTATIONS = 3
REQUESTS_BETWEEN = 40
_WATCH = "%pg_current_snapshot%"


class Load:
    """Copies, reads and deletes segments in several threads, and counts what fails."""

    def __init__(self, tier: SmallTier) -> None:
        self._tier = tier
        self._ending = Event()
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(32)
        self.requests: Counter[str] = Counter()
        self.failures: list[Exception] = []

    def start(self, threads: int) -> None:
        for _ in range(threads):
            self._pool.submit(self._run)

    def end(self) -> None:
        self._ending.set()
        self._pool.shutdown()

    def proceed(self) -> None:
        """Wait until some more lives of segments have ended."""
        before = self.requests["segments"]
        eventually(lambda: self.requests["segments"] >= before + REQUESTS_BETWEEN)
        assert not self.failures, self.failures[0]

    def take_a_connection_from_rlmm(self) -> None:
        """Watch a partition: the connection of watches leaves RLMM's pool, and ends with them."""
        (tp,) = a_topic()
        with closing(self._tier.rlmm.watch_partitions([WatchedPartition(tp)])) as updates:
            next(updates)

    def _run(self) -> None:
        (tp,) = a_topic()
        number = 0
        while not self._ending.is_set():
            try:
                copied = self._tier.copy(segment(tp, number))
                assert fetched(self._tier.rsm, copied)
                self._tier.move(copied, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
                self._tier.rsm.delete_log_segment_data(copied)
                self._tier.move(copied, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED)
            except Exception as e:  # noqa: BLE001 - the test shows and counts whatever fails
                self.failures.append(e)
            number += 1
            with self._lock:
                self.requests["segments"] += 1


@pytest.fixture(scope="module")
def stack(server_directory: Path) -> Iterator[EmbeddedStack]:
    with EmbeddedStack(server_directory / "rotated", with_rlm=False) as running:
        yield running


@pytest.fixture
def load(stack: EmbeddedStack) -> Iterator[Load]:
    with ExitStack() as cleanup:
        rsm, rlmm = stack.endpoints.rsm, stack.endpoints.rlmm
        tier = SmallTier(
            RemoteStorageManagerClient(cleanup.enter_context(open_channel(rsm, PLAINTEXT)), rsm),
            RemoteLogMetadataManagerClient(
                cleanup.enter_context(open_channel(rlmm, PLAINTEXT)), rlmm
            ),
        )
        made = Load(tier)
        cleanup.callback(made.end)
        made.start(2)
        made.proceed()
        yield made


class StoreKeys:
    """The keys that the store accepts, and the files in which RSM finds its own."""

    def __init__(self, stack: EmbeddedStack) -> None:
        assert isinstance(stack.s3, SeaweedFS)
        self._server = stack.s3
        self._directory = Path(stack.endpoints.data_directory)

    def accept(self, *keys: tuple[str, str]) -> None:
        path = self._directory / Store.S3 / "credentials.json"
        accepted = json.loads(path.read_text())
        accepted["identities"][0]["credentials"] = [
            {"accessKey": access, "secretKey": secret} for access, secret in keys
        ]
        write_secret(path, json.dumps(accepted))
        os.kill(self._server.pid, signal.SIGHUP)
        eventually(lambda: all(self._works(key) for key in keys))

    def refuse_all_but(self, key: tuple[str, str], old: tuple[str, str]) -> None:
        self.accept(key)
        eventually(lambda: not self._works(old))

    def write(self, key: tuple[str, str]) -> None:
        write_secret(self._directory / KEYS / "s3-access-key", key[0])
        write_secret(self._directory / KEYS / "s3-secret-key", key[1])

    def _works(self, key: tuple[str, str]) -> bool:
        store = S3Endpoint(self._server.endpoint.endpoint, *key)
        try:
            store.client().bucket_exists("sediment")
        except Exception:  # noqa: BLE001 - refused, by whatever error
            return False
        return True


def has_lines(log: Path, text: str, count: int) -> bool:
    return log.read_text().count(text) >= count


@pytest.mark.long
def test_s3_keys_are_replaced_under_load(stack: EmbeddedStack, load: Load) -> None:
    keys = StoreKeys(stack)
    log = stack.services["rsm"].process.log_path
    old = stack.credentials.s3_access_key, stack.credentials.s3_secret_key
    for rotation in range(ROTATIONS):
        new = secrets.token_hex(10), secrets.token_urlsafe(30)
        keys.accept(old, new)
        load.proceed()
        keys.write(new)
        if rotation:  # the first time the old keys are gone before RSM looks for others
            eventually(partial(has_lines, log, "read changed S3 credentials", rotation + 1))
            load.proceed()
        keys.refuse_all_but(new, old)
        load.proceed()
        assert not [secret for secret in (*old, *new) if secret in log.read_text()]
        old = new
    load.end()
    assert not load.failures


class Sessions:
    """RLMM's sessions, as the database has them."""

    def __init__(self, administrator: "psycopg.Connection[tuple[object, ...]]") -> None:
        self._administrator = administrator

    def now(self) -> object:
        return self._one("SELECT clock_timestamp()")

    def begin_after(self, moment: object, load: Load) -> None:
        """Take connections out of RLMM's pool until calls have opened another one."""

        def has_begun() -> bool:
            load.take_a_connection_from_rlmm()
            eventually(lambda: not self._watch())
            return bool(self._count("backend_start > %s AND query NOT LIKE %s", moment, _WATCH))

        eventually(has_begun)

    def _watch(self) -> int:
        return self._count("query LIKE %s", _WATCH)

    def _count(self, condition: LiteralString, *values: object) -> int:
        query = sql.SQL("SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND ")
        found = self._one(query + sql.SQL(condition), LOGIN, *values)
        assert isinstance(found, int)
        return found

    def _one(self, query: LiteralString | sql.Composed, *values: object) -> object:
        row = self._administrator.execute(query, values).fetchone()
        assert row is not None
        return row[0]


def test_the_database_password_is_replaced_under_load(stack: EmbeddedStack, load: Load) -> None:
    """Calls open connections both before and after the server accepts the password of the file."""
    administrator = stack.postgres.url("postgres").replace("+psycopg", "")
    file = Path(stack.endpoints.data_directory) / KEYS / "database-password"
    alter = sql.SQL("ALTER ROLE {} PASSWORD {}")
    with psycopg.connect(administrator, autocommit=True) as connection:
        sessions = Sessions(connection)
        for _ in range(ROTATIONS):
            password = secrets.token_urlsafe(18)
            write_secret(file, password)
            sessions.begin_after(sessions.now(), load)
            load.proceed()
            connection.execute(alter.format(sql.Identifier(LOGIN), sql.Literal(password)))
            sessions.begin_after(sessions.now(), load)
            load.proceed()
    load.end()
    assert not load.failures
