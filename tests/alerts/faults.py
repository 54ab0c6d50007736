"""Declare the faults that make each alert fire, and how each one ends."""

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread

from sqlalchemy import text

from services.api.errors import RemoteStorageError
from services.api.remote_log_metadata_manager import all_segments
from services.common.client_security import ClientSecurity
from services.local.certificates import Certificate
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rpc.client.channel import open_channel
from services.rpc.client.storage import RemoteStorageManagerClient
from tests.alerts.deployment import CONNECTIONS, Deployment
from tests.harness.faults import Answer, Delay
from tests.harness.proxy import TcpProxy
from tests.harness.read_loop import ReadLoop

_WRITES = ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
_DELETES = ("DeleteObject", "DeleteObjects")
_READS = ("GetObject",)
_LARGE_BYTES = 64 * 1024 * 1024
_LARGE_EVERY_S = 2.0
_TRIMMED = {"sediment.local.retention.owner": "rlm", "retention.ms": "-1"}
_DAY = timedelta(days=1)
_LONG_LOCKS = DatabaseLimits(idle_in_transaction_timeout_ms=600_000)


@dataclass(frozen=True)
class Fault:
    """A fault, as a context manager: it lasts while it is entered.

    Attributes:
        what: for the table of docs/run/alerts.md.
        alerts: those that must fire.
    """

    what: str
    alerts: tuple[str, ...]
    happens: Callable[[Deployment], AbstractContextManager[None]]


Act = Callable[[Deployment], object]


def _between(begin: Act, end: Act) -> Callable[[Deployment], AbstractContextManager[None]]:
    """Return a fault that begins and ends with one act each."""

    @contextmanager
    def happens(deployment: Deployment) -> Iterator[None]:
        begin(deployment)
        yield
        end(deployment)

    return happens


@contextmanager
def _often(call: Callable[[], object], interval_s: float = 0.1) -> Iterator[None]:
    """Call in a thread of its own; refusals are what the faults are about."""
    stopping = Event()

    def run() -> None:
        while not stopping.wait(interval_s):
            with suppress(RemoteStorageError):
                call()

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def _store(
    deployment: Deployment, answer: Answer | Delay, operations: tuple[str, ...]
) -> Iterator[None]:
    for operation in operations:
        deployment.store.faults.add(answer, operation=operation, times=None)
    try:
        yield
    finally:
        deployment.store.faults.clear()


@contextmanager
def _store_away(deployment: Deployment) -> Iterator[None]:
    with ExitStack() as ending:
        ending.enter_context(_store(deployment, Answer(503), _WRITES + _DELETES))
        deployment.roll("steady")
        # Its records are older than this: the broker deletes the segment as soon as it may.
        deployment.configure("due", {"local.retention.ms": "1000"})
        deployment.roll("due")
        deployment.configure("expiring", {"retention.ms": "1000"})
        ending.enter_context(_often(_growing(deployment), _LARGE_EVERY_S))
        yield
    deployment.configure("expiring", {})


def _growing(deployment: Deployment) -> Callable[[], None]:
    """Return a function that adds a partition with a large segment; all are links to one file."""
    source = deployment.folder("uncopied")
    first = deployment.roll("uncopied", _LARGE_BYTES)
    numbers = iter(range(1, 1_000))
    # A segment begins at the offset of its name, so that a copy has the offsets of its source.
    after = max(source.glob("*.log"))

    def grow() -> None:
        making = source.parent.parent / "making"
        making.mkdir()
        for path in source.iterdir():
            if path.name.startswith(first.stem) and path.suffix != ".snapshot":
                os.link(path, making / path.name)
        os.link(source / f"{after.stem}.snapshot", making / f"{after.stem}.snapshot")
        (making / after.name).touch()
        shutil.copy(source / "partition.metadata", making)
        (making / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {int(first.stem)}\n")
        making.rename(source.with_name(f"uncopied-{next(numbers)}"))

    return grow


@contextmanager
def _lost(deployment: Deployment) -> Iterator[None]:
    # While nothing is copied, so that what the broker deletes is in no tier.
    with _store(deployment, Answer(503), _WRITES):
        deployment.roll("lost")
        active = max(deployment.folder("lost").glob("*.log"))
        for path in deployment.folder("lost").glob("*[0-9].*"):
            if path.stem < active.stem:
                path.unlink()
        yield


@contextmanager
def _store_refuses(deployment: Deployment) -> Iterator[None]:
    with _store(deployment, Answer(403), _WRITES + _DELETES):
        deployment.roll("steady")
        deployment.configure("denied", {"retention.ms": "1000"})
        yield
    deployment.configure("denied", {})


@contextmanager
def _cold_reads(deployment: Deployment, readers: int) -> Iterator[None]:
    """Read what only the tier has."""
    for path in deployment.folder("cold").glob(f"{0:020}.*"):
        path.unlink()
    with ExitStack() as ending:
        for _ in range(readers):
            loop = ReadLoop(deployment.rlm.address, deployment.name("cold"), 0, 0.05)
            ending.enter_context(loop)
        yield


@contextmanager
def _unreadable_store(deployment: Deployment) -> Iterator[None]:
    with _cold_reads(deployment, 1), _store(deployment, Answer(503), _READS):
        yield


@contextmanager
def _slow_store(deployment: Deployment) -> Iterator[None]:
    with ExitStack() as ending:
        ending.enter_context(_cold_reads(deployment, 4))
        ending.enter_context(_store(deployment, Delay(500), _READS))
        for _ in range(12):
            ending.enter_context(_often(lambda: _fetch(deployment, "steady"), 0.0))
        yield


def _fetch(deployment: Deployment, topic: str) -> None:
    with deployment.world.metadata() as rlmm, deployment.world.storage() as rsm:
        segment = next(iter(all_segments(rlmm, deployment.name(topic))))
        for _ in rsm.fetch_log_segment(segment, 0):
            pass


@contextmanager
def _damaged_object(deployment: Deployment) -> Iterator[None]:
    client = deployment.world.s3.client()
    bucket = deployment.world.bucket
    listed = client.list_objects(bucket, recursive=True)
    names = [str(found.object_name) for found in listed]
    topic_id = deployment.name("damaged").topic_id.hex
    (key,) = (name for name in names if topic_id in name and name.endswith(".log"))
    with client.get_object(bucket, key) as answer:
        whole = answer.read()

    def put(content: bytes) -> None:
        client.put_object(bucket, key, io.BytesIO(content), len(content))

    put(whole[:-1] + bytes([whole[-1] ^ 1]))
    with _often(lambda: _fetch(deployment, "damaged"), 0.5):
        yield
    put(whole)


@contextmanager
def _damaged_log(deployment: Deployment) -> Iterator[None]:
    """Change a byte of a segment before its copy begins, and put it back."""
    folder = deployment.folder("held")
    with _store(deployment, Answer(503), _WRITES):
        log = deployment.roll("held")
        whole = log.read_bytes()
        log.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert log.parent == folder
    yield
    log.write_bytes(whole)


@contextmanager
def _no_index_cache(deployment: Deployment) -> Iterator[None]:
    shutil.rmtree(deployment.index_cache)
    deployment.index_cache.touch()
    with _cold_reads(deployment, 1):
        yield
    deployment.index_cache.unlink()


def _refuse(proxy: TcpProxy) -> None:
    proxy.refuse_connections()
    proxy.cut_connections()


@contextmanager
def _tls_calls(deployment: Deployment, shown: Certificate) -> Iterator[None]:
    """Call the RSM with TLS, with this certificate."""
    security = ClientSecurity(deployment.authority.certificate, shown.certificate, shown.key)
    with deployment.world.metadata() as rlmm:
        segment = next(iter(all_segments(rlmm, deployment.name("steady"))))
    address = deployment.tls_rsm.address
    with open_channel(address, security) as channel:
        rsm = RemoteStorageManagerClient(channel, address)
        with _often(lambda: list(rsm.fetch_log_segment(segment, 0))):
            yield


@contextmanager
def _broken_policy(deployment: Deployment) -> Iterator[None]:
    whole = deployment.policy.read_text()
    _replace(deployment.policy, "[[grant]\n")
    # A process reads the file again when a call needs it.
    with _tls_calls(deployment, deployment.operator):
        yield
    _replace(deployment.policy, whole)


def _replace(path: Path, content: str) -> None:
    making = path.with_suffix(".new")
    making.write_text(content)
    making.replace(path)


def _age_upkeep(deployment: Deployment, sign: str) -> None:
    """Make verifications and maintenance 46 days older, which no test can wait for, or younger."""
    engine = create_database_engine(deployment.world.database_url)
    try:
        with engine.begin() as connection:
            aged = f"UPDATE tool_runs SET ended_at = ended_at {sign} interval '46 days'"
            changed = connection.execute(text(aged))
            assert changed.rowcount > 0
            # The maintenance's age, as none ran.
            made = f"UPDATE deployment SET made_at = made_at {sign} interval '46 days'"
            connection.execute(text(made))
    finally:
        engine.dispose()


@contextmanager
def _locked_table(deployment: Deployment) -> Iterator[None]:
    """Lock a table that every search reads, and search from more threads than connections."""
    engine = create_database_engine(deployment.database_url, _LONG_LOCKS)
    with ExitStack() as ending:
        ending.callback(engine.dispose)
        connection = ending.enter_context(engine.connect())
        connection.execute(text("LOCK TABLE segments IN ACCESS EXCLUSIVE MODE"))
        rlmm = ending.enter_context(deployment.world.metadata())
        name = deployment.name("steady")
        for _ in range(3 * CONNECTIONS):
            search = partial(rlmm.remote_log_segment_metadata, name, 0, 0)
            ending.enter_context(_often(search, 0.0))
        ending.callback(connection.rollback)
        yield


@contextmanager
def _retention_set(deployment: Deployment) -> Iterator[None]:
    deployment.broker_retention[0] = "86400000"
    deployment.configure("trimmed", _TRIMMED)
    yield
    deployment.broker_retention[0] = "-1"


@contextmanager
def _trimming_ends(deployment: Deployment) -> Iterator[None]:
    deployment.configure("trimmed", _TRIMMED)
    deployment.poller.kill()
    yield
    deployment.poller.start()
    deployment.configure("trimmed", {})


ROUNDS: tuple[tuple[Fault, ...], ...] = (
    (
        Fault(
            "the store answers writes and deletions with 503 while segments are rolled and expire",
            (
                "SedimentCopyingStalled",
                "SedimentLocalDeletionNear",
                "SedimentCopyLagGrows",
                "SedimentDeletionStalled",
                "SedimentCallsFail",
            ),
            _store_away,
        ),
        Fault(
            "RSM is sent a request by an identity without a grant",
            ("SedimentCallsDenied",),
            lambda deployment: _tls_calls(deployment, deployment.stranger),
        ),
        Fault(
            "RSM's certificate is replaced by one for six days",
            ("SedimentCertificateEnds",),
            _between(
                lambda d: d.authority.issue("server", valid_until=datetime.now(UTC) + 6 * _DAY),
                lambda d: d.authority.issue("server"),
            ),
        ),
        Fault(
            "the broker's port refuses connections",
            ("SedimentPollingStalled",),
            _between(lambda d: _refuse(d.broker), lambda d: d.broker.accept_connections()),
        ),
        Fault(
            "the last verification and maintenance are made 46 days old in the database",
            ("SedimentNotVerified", "SedimentNotMaintained"),
            _between(partial(_age_upkeep, sign="-"), partial(_age_upkeep, sign="+")),
        ),
    ),
    (
        Fault(
            "the store answers writes and deletions with 403",
            ("SedimentCopyErrors", "SedimentDeleteErrors"),
            _store_refuses,
        ),
        Fault("the store answers reads with 503", ("SedimentReadErrors",), _unreadable_store),
        Fault(
            "the policy file is replaced by one that is not TOML",
            ("SedimentFileRejected",),
            _broken_policy,
        ),
    ),
    (
        Fault(
            "the store takes 500 ms longer for each read, and 16 clients read at once",
            ("SedimentReadersBusy", "SedimentOverloaded", "SedimentCallsQueue"),
            _slow_store,
        ),
        Fault(
            "a job of the chart fails",
            ("SedimentJobFailed",),
            _between(
                lambda d: d.cluster.failed_jobs.set(1), lambda d: d.cluster.failed_jobs.set(0)
            ),
        ),
        Fault(
            "the brokers have a retention of a topic whose local records are RLM's to delete",
            ("SedimentBrokerRetentionSet",),
            _retention_set,
        ),
        Fault(
            "no replica of the console is available",
            ("SedimentConsoleDown",),
            _between(
                lambda d: d.cluster.available_consoles.set(0),
                lambda d: d.cluster.available_consoles.set(1),
            ),
        ),
    ),
    (
        Fault(
            "the store answers everything with 503",
            ("SedimentStoreErrors", "SedimentStoreSilent"),
            _between(
                lambda d: d.store.faults.add(Answer(503), times=None),
                lambda d: d.store.faults.clear(),
            ),
        ),
    ),
    (
        Fault(
            "the directory with the objects of an RSM that has a mirror is moved away",
            ("SedimentMirrorRead",),
            _between(
                lambda d: d.objects.rename(d.objects.with_name("away")),
                lambda d: d.objects.with_name("away").rename(d.objects),
            ),
        ),
    ),
    (
        Fault(
            "the database's port refuses connections",
            ("SedimentDatabaseErrors", "SedimentDatabaseSilent"),
            _between(lambda d: _refuse(d.database), lambda d: d.database.accept_connections()),
        ),
    ),
    (
        Fault(
            "a table of the database is locked, and more calls need it than there are connections",
            ("SedimentConnectionsUsedUp",),
            _locked_table,
        ),
    ),
    (
        Fault(
            "one byte of a rolled segment is changed on the broker's disk",
            ("SedimentPartitionsBlocked",),
            _damaged_log,
        ),
    ),
    (
        Fault(
            "one byte of an object is changed in the store",
            ("SedimentDamagedData",),
            _damaged_object,
        ),
        Fault(
            "the index cache's directory is replaced by a file",
            ("SedimentIndexCacheFails",),
            _no_index_cache,
        ),
        Fault(
            "the RLM that trims a topic is killed",
            ("SedimentTrimmingStalled",),
            _trimming_ends,
        ),
        Fault(
            "RSM is killed",
            ("SedimentDown",),
            _between(lambda d: d.tls_rsm.kill(), lambda d: d.tls_rsm.start()),
        ),
        # Last: the store takes no writes, neither those of other faults.
        Fault(
            "the broker deletes a segment while the store answers writes with 503",
            ("SedimentLostBeforeCopy",),
            _lost,
        ),
    ),
)
