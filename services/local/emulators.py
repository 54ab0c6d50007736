"""Run emulators of Google Cloud Storage and of Azure Blob Storage.

They are made from pinned sources and kept in the user's cache by version. They check hardly any
credentials: for trying and for tests only.
"""

import base64
import fcntl
import hashlib
import hmac
import json
import secrets
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import platformdirs
import urllib3
from urllib3.exceptions import HTTPError

from services.local.data_directory import Store, write_secret
from services.local.process import LOOPBACK, PORT_FILE, ChildProcess, ProcessError, ServerProcess

_SOURCES = Path(__file__).parent
_BUILD_TIMEOUT_S = 1_800
_PROBE_TIMEOUT_S = 5.0


class StoreEmulator(ServerProcess):
    """A store of one kind, with its data in `directory`, kept between runs. Not thread-safe."""

    backend: str

    def __init__(self, directory: Path) -> None:
        self._directory = directory.absolute()
        super().__init__(1, self._directory / PORT_FILE)

    @property
    def address(self) -> str:
        """Return HOST:PORT."""
        if not self._ports:
            raise ProcessError(f"{type(self).__name__} was never started")
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def locations_file(self) -> Path:
        """Return RSM_LOCATIONS_FILE, with the options of the location in this store."""
        return self._directory / "locations.toml"

    def start(self) -> None:
        """Start the emulator and wait until it serves; the first time it is built for minutes.

        Raises:
            ProcessError: it did not start, or what builds it is missing; the message says which.
        """
        self.ensure_built()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        super().start()

    @classmethod
    @abstractmethod
    def ensure_built(cls) -> Path:
        """Return the program, built once per version.

        Raises:
            ProcessError: what builds it is missing or failed.
        """

    @abstractmethod
    def ensure_bucket(self, name: str) -> None:
        """Create a bucket or container if it is missing."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """Return the options of a location in this store, which name files of `directory`."""

    def place(self, bucket: str) -> dict[str, str]:
        """Return the fields of a location that name a bucket."""
        return {"bucket": bucket}

    def rsm_settings(
        self, bucket: str, prefix: str, registry: Path | None = None, address: str | None = None
    ) -> dict[str, str]:
        """Return RSM's settings; write the location's options into `registry`.

        Args:
            registry: None for `locations_file`.
            address: where RSM finds the store; None for its own address.
        """
        registry = registry or self.locations_file
        entry = {"backend": self.backend, "endpoint": address or self.address}
        entry |= {**self.place(bucket), "prefix": prefix}
        lines = ["[[location]]", "id = 1", "secure = false"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in entry.items()]
        lines += ["[location.options]"]
        lines += [f"{name} = {json.dumps(value)}" for name, value in self.options().items()]
        registry.write_text("\n".join(lines) + "\n")
        settings = {f"RSM_{name.upper()}": value for name, value in entry.items()}
        return {**settings, "RSM_SECURE": "false", "RSM_LOCATIONS_FILE": str(registry)}

    def _request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> int:
        """Send one request and return its status."""
        pool = urllib3.PoolManager(timeout=_PROBE_TIMEOUT_S, retries=False)
        target = f"http://{self.address}{path}"
        return pool.request(method, target, body=body, headers=headers).status

    def _serves(self, path: str) -> bool:
        try:
            return self._request("GET", path) < 500
        except HTTPError:
            return False


class FakeGcs(StoreEmulator):
    """fake-gcs-server behind the uploads of the XML API, which it lacks (fake_gcs/main.go)."""

    backend = Store.GCS

    @classmethod
    def ensure_built(cls) -> Path:
        sources = _SOURCES / "fake_gcs"

        def build(directory: Path) -> None:
            argv = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(directory / "fake-gcs")]
            needs = (
                "the emulator of GCS is built with Go 1.26 or newer (https://go.dev/doc/install)"
            )
            _run([*argv, "."], sources, needs)

        return _made("fake-gcs", sources, build) / "fake-gcs"

    def ensure_bucket(self, name: str) -> None:
        body = json.dumps({"name": name}).encode()
        path = "/storage/v1/b?project=sediment"
        status = self._request("POST", path, body, {"content-type": "application/json"})
        if status not in (200, 409):
            raise ProcessError(f"the emulator of GCS refused to make bucket {name!r}: {status}")

    def options(self) -> dict[str, str]:
        # What the library takes for a store that wants no token.
        key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        file = write_secret(self._directory / "service-account.json", json.dumps(key))
        return {"service_account_file": str(file)}

    def _program(self) -> ChildProcess:
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        argv: list[str | Path] = [
            self.ensure_built(),
            f"-address={self.address}",
            f"-data={data}",
        ]
        return ChildProcess("fake-gcs", argv, self._directory, {"HOME": str(self._directory)})

    def _is_ready(self) -> bool:
        return self._serves("/_internal/healthcheck")


class Azurite(StoreEmulator):
    """Microsoft's emulator, an npm package."""

    backend = Store.AZURE
    account = "sediment"

    @classmethod
    def ensure_built(cls) -> Path:
        _tool("node", _NODE)
        sources = _SOURCES / "azurite"

        def install(directory: Path) -> None:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(sources / name, directory)
            argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
            _run(argv, directory, _NODE)

        return _made("azurite", sources, install) / "node_modules/azurite/dist/src/blob/main.js"

    def ensure_bucket(self, name: str) -> None:
        date, version = formatdate(usegmt=True), "2021-08-06"
        resource = f"/{self.account}/{self.account}/{name}\nrestype:container"
        headers = f"x-ms-date:{date}\nx-ms-version:{version}"
        signed = "PUT" + "\n" * 12 + f"{headers}\n{resource}"
        digest = hmac.digest(base64.b64decode(self._key()), signed.encode(), hashlib.sha256)
        signature = base64.b64encode(digest).decode()
        status = self._request(
            "PUT",
            f"/{self.account}/{name}?restype=container",
            headers={
                "x-ms-date": date,
                "x-ms-version": version,
                "Authorization": f"SharedKey {self.account}:{signature}",
            },
        )
        if status not in (201, 409):
            raise ProcessError(f"Azurite refused to make container {name!r}: {status}")

    def options(self) -> dict[str, str]:
        return {"account": self.account, "account_key_file": str(self._key_file)}

    @property
    def _key_file(self) -> Path:
        return self._directory / "account-key"

    def _key(self) -> str:
        if not self._key_file.exists():
            write_secret(self._key_file, base64.b64encode(secrets.token_bytes(32)).decode())
        return self._key_file.read_text().strip()

    def _program(self) -> ChildProcess:
        host, port = self.address.split(":")
        argv: list[str | Path] = [_tool("node", _NODE), self.ensure_built(), "--blobHost", host]
        argv += ["--blobPort", port, "--location", self._directory / "data", "--silent"]
        argv += ["--skipApiVersionCheck", "--disableTelemetry"]
        accounts = {"AZURITE_ACCOUNTS": f"{self.account}:{self._key()}"}
        environment = {"HOME": str(self._directory), **accounts}
        return ChildProcess("azurite", argv, self._directory, environment)

    def _is_ready(self) -> bool:
        return self._serves(f"/{self.account}?comp=list")


_NODE = "the emulator of Azure needs Node.js 20 or newer, and npm (https://nodejs.org)"
EMULATORS: dict[str, type[StoreEmulator]] = {each.backend: each for each in (FakeGcs, Azurite)}


def _made(name: str, sources: Path, make: Callable[[Path], None]) -> Path:
    """Return the directory made from sources; any number of processes may ask at the same time.

    It appears whole or not at all, under a name of its own for each content of the sources.
    """
    digest = hashlib.sha256()
    for file in sorted(sources.iterdir()):
        digest.update(file.read_bytes())
    made = platformdirs.user_cache_path("sediment") / f"{name}-{digest.hexdigest()[:16]}"
    if made.is_dir():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with (made.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            directory = Path(tempfile.mkdtemp(dir=made.parent, prefix=f".{name}-"))
            try:
                make(directory)
                directory.rename(made)
            finally:
                shutil.rmtree(directory, ignore_errors=True)
    return made


def _tool(name: str, needs: str) -> str:
    if found := shutil.which(name):
        return found
    raise ProcessError(f"`{name}` is not on the PATH: {needs}; install it and start again")


def _run(argv: list[str], directory: Path, needs: str) -> None:
    done = subprocess.run(
        [_tool(argv[0], needs), *argv[1:]],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ProcessError(f"{' '.join(argv[:2])} failed ({needs}): {done.stderr[-2000:]}")
