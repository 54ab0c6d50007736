"""Run real MinIO as an S3 server of tests: one process, one drive, on free ports of the
loopback.
"""

import secrets
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from minio.error import MinioException
from urllib3.exceptions import HTTPError

from services.local.process import LOOPBACK, ChildProcess, HeldPorts, start_on_free_ports
from services.local.seaweedfs import S3Endpoint
from tests.harness.go_programs import MINIO

_START_TIMEOUT_MS = 90_000
_PROBE_TIMEOUT_S = 5.0
_ACCESS_KEY = "sediment"


class MinioServer:
    """Runs MinIO with its data in `directory`, kept between runs.

    The port is found at the first start and kept, like the secret key, as long as this object
    exists. Not thread-safe.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        self._secret_key = secrets.token_urlsafe(30)
        self._ports: Sequence[int] = ()
        self._held_ports: HeldPorts | None = None
        self._process: ChildProcess | None = None

    @property
    def endpoint(self) -> S3Endpoint:
        if not self._ports:
            raise RuntimeError("MinIO was never started")
        return S3Endpoint(f"{LOOPBACK}:{self._ports[0]}", _ACCESS_KEY, self._secret_key)

    @property
    def pid(self) -> int:
        return self._started().pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running()

    def start(self) -> None:
        """Start the server and wait until it answers a signed request.

        Raises:
            ProcessError: the server did not start; the message has the end of its log.
            GoProgramError: MinIO is not built yet.
        """
        (self._directory / "data").mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._ports:
            self._start_on(self._ports)
        else:
            self._held_ports = start_on_free_ports(1, self._start_on)

    def stop(self) -> None:
        """Stop the server gracefully."""
        self._started().stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        self._started().kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _start_on(self, ports: Sequence[int]) -> None:
        self._ports = ports
        address = f"--address={LOOPBACK}:{ports[0]}"
        data = self._directory / "data"
        argv: list[str | Path] = [MINIO.built(), "server", "--quiet", address, data]
        # An environment of its own: MinIO reads MINIO_* and files below HOME.
        environment = {
            "HOME": str(self._directory),
            "MINIO_ROOT_USER": _ACCESS_KEY,
            "MINIO_ROOT_PASSWORD": self._secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "MINIO_CI_CD": "on",  # the drive may be a folder of the root file system
        }
        self._process = ChildProcess("minio", argv, self._directory, environment)
        self._process.start()
        self._process.wait_until_ready(self._answers, _START_TIMEOUT_MS)

    def _answers(self) -> bool:
        try:
            self.endpoint.client(_PROBE_TIMEOUT_S).list_buckets()
        except (HTTPError, MinioException):
            return False
        return True

    def _started(self) -> ChildProcess:
        if self._process is None:
            raise RuntimeError("MinIO was never started")
        return self._process
