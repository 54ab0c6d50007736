"""Deploy the services as in production: own processes, interceptors on, embedded real servers."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from minio import Minio
from minio.deleteobjects import DeleteObject

from benchmarks.counts import Counted, counters_of, counting_stack
from benchmarks.store import s3_server
from services.common.client_security import PLAINTEXT, ClientSecurity
from services.local.stack import BUCKET, PREFIX, EmbeddedStack, ServiceProcess, rsm_settings
from services.rpc.client.channel import open_channel
from services.rpc.client.log import RemoteLogManagerClient
from services.rpc.client.metadata import RemoteLogMetadataManagerClient
from services.rpc.client.storage import RemoteStorageManagerClient
from services.rsm.marker import MARKER_NAME
from services.rsm.settings import RsmSettings

SERVICES = ("rsm", "rlmm", "rlm")


@dataclass(frozen=True)
class Deployment:
    """Clients of running services, and the facts about them that benchmarks need."""

    stack: EmbeddedStack
    rsm: RemoteStorageManagerClient
    rlmm: RemoteLogMetadataManagerClient
    rlm: RemoteLogManagerClient

    @property
    def pids(self) -> dict[str, int]:
        pids = self.stack.endpoints.pids
        return {name: pids[name] for name in SERVICES}

    def counted(self, operation: str, operations: float | str = 1) -> Counted:
        """Count all that the services do, for each operation.

        Args:
            operations: so many in one round; or the counter that counts them.
        """
        return Counted(operation, operations, counters_of(self.stack))

    @property
    def bucket(self) -> str:
        return self.stack.endpoints.s3_bucket

    @property
    def part_size_bytes(self) -> int:
        """Return RSM's default part size, which the deployment keeps."""
        return int(RsmSettings.model_fields["part_size_bytes"].default)

    @contextmanager
    def another_rsm(
        self, changes: Mapping[str, str], security: ClientSecurity = PLAINTEXT
    ) -> Iterator[tuple[RemoteStorageManagerClient, int]]:
        """Start one more RSM as `rsm_process` does; yield a client and its pid."""
        with (
            self.rsm_process(changes) as service,
            open_channel(service.address, security) as channel,
        ):
            yield RemoteStorageManagerClient(channel, service.address), service.process.pid

    @contextmanager
    def rsm_process(self, changes: Mapping[str, str]) -> Iterator[ServiceProcess]:
        """Start one more RSM on the same store with other settings."""
        settings = {**rsm_settings(self.stack.s3.endpoint, BUCKET, PREFIX), **changes}
        with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
            service = ServiceProcess("rsm", settings, Path(name))
            service.start()
            try:
                yield service
            finally:
                service.stop()

    def rsm_default(self, name: str) -> object:
        """Return RSM's setting of this name, which the deployment keeps."""
        return RsmSettings.model_fields[name].default

    def only_log_key(self) -> str:
        """Return the key of the log of the only stored segment."""
        listed = self.s3_client().list_objects(self.bucket, recursive=True)
        (key,) = (str(o.object_name) for o in listed if str(o.object_name).endswith(".log"))
        return key

    def s3_client(self) -> Minio:
        return self.stack.s3.endpoint.client()

    def empty_bucket(self) -> None:
        """Delete all objects but the deployment's marker."""
        client = self.s3_client()
        listed = client.list_objects(self.bucket, recursive=True)
        names = [str(item.object_name) for item in listed]
        keys = [DeleteObject(name) for name in names if name != MARKER_NAME]
        for error in client.remove_objects(self.bucket, keys):
            raise RuntimeError(f"cannot empty the bucket: {error}")

    def durability(self) -> str:
        """Read fsync and synchronous_commit from the server."""
        url = self.stack.credentials.database_url.replace("+psycopg", "")
        with psycopg.connect(url) as connection:
            shown = [connection.execute(f"SHOW {name}").fetchone() for name in _DURABILITY]
        return ", ".join(str(row[0]) for row in shown if row)


SAMPLED = {"RSM_VERIFY_READS": "sampled"}
ALWAYS = {"RSM_VERIFY_READS": "always"}

_DURABILITY = ("fsync", "synchronous_commit")


@contextmanager
def deployed(
    log_dirs: Sequence[Path] = (), settings: Mapping[str, str] | None = None
) -> Iterator[Deployment]:
    """Start everything on a data directory of its own, which is removed at the end.

    Args:
        settings: environment variables that differ from the defaults.
    """
    with tempfile.TemporaryDirectory(prefix="sediment-bench-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        s3 = s3_server(directory / "s3")
        stack = EmbeddedStack(
            directory,
            log_dirs=log_dirs,
            task_interval_ms=1000,
            settings=settings,
            s3=s3,
            with_listener=True,
        )
        with (
            counting_stack(stack, directory),
            open_channel(stack.endpoints.rsm, PLAINTEXT) as rsm,
            open_channel(stack.endpoints.rlmm, PLAINTEXT) as rlmm,
            open_channel(stack.endpoints.rlm, PLAINTEXT) as rlm,
        ):
            yield Deployment(
                stack,
                RemoteStorageManagerClient(rsm, stack.endpoints.rsm),
                RemoteLogMetadataManagerClient(rlmm, stack.endpoints.rlmm),
                RemoteLogManagerClient(rlm, stack.endpoints.rlm),
            )
