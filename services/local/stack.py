"""Run PostgreSQL, an object store and the three services as processes on one machine."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from services.common.secret_variables import is_private
from services.local.data_directory import (
    CREDENTIALS,
    INDEX_CACHE,
    KEYS,
    POSTGRES,
    SERVICES,
    TLS,
    StackCredentials,
    StackEndpoints,
    Store,
    check_apart,
    check_store,
    default_directory,
    locked,
    remove_state,
    write_credentials,
    write_secret,
    write_state,
)
from services.local.emulators import EMULATORS, StoreEmulator
from services.local.postgres import EmbeddedPostgres
from services.local.process import LOOPBACK, ChildProcess, ProcessError, ServerProcess, last_error
from services.local.seaweedfs import S3Endpoint, S3Server, SeaweedFS
from services.local.stack_tls import StackTls

PROCESS_VARIABLES = {
    "GRPC_VERBOSITY": "ERROR",
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": "2097152",
    "MALLOC_TRIM_THRESHOLD_": "33554432",
}
"""Variables that Python cannot set for itself; the image and the chart set the same.

glibc returns large blocks when they are freed, and keeps few others. By default it keeps all of
them, in an arena per thread: eight copies at once hold several times the memory in use. gRPC logs
only its own errors. By default it logs a line for each failed handshake, which anyone can cause.
"""

MAX_RESTARTS = 3
RESTARTS_WITHIN_S = 120.0
"""A part that ends by itself is started again so often within so long."""

_FIRST_START_MIB = 150
_RESERVE_MIB = 32
"""What a first start writes, and what running needs at least."""

_CONSUMERS = "RLM_CONSUMER_LISTEN_ADDRESS"
_PREFIXES = {"rsm": "RSM_", "rlmm": "RLMM_", "rlm": "RLM_"}


def rsm_settings(
    s3: S3Endpoint, bucket: str, prefix: str, deployment_id: str = ""
) -> dict[str, str]:
    """Return RSM's settings; without `deployment_id` RSM does not mark the prefix."""
    settings = {
        "RSM_BACKEND": "s3",
        "RSM_ENDPOINT": s3.endpoint,
        "RSM_REGION": s3.region,
        "RSM_ACCESS_KEY": s3.access_key,
        "RSM_SECRET_KEY": s3.secret_key,
        "RSM_SECURE": str(s3.secure).lower(),
        "RSM_BUCKET": bucket,
        "RSM_PREFIX": prefix,
    }
    return {**settings, "RSM_DEPLOYMENT_ID": deployment_id} if deployment_id else settings


def with_key_files(settings: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Move RSM's S3 keys into files; return settings that name the files."""
    moved = {**settings, "RSM_CREDENTIALS": "files"}
    for name in ("RSM_ACCESS_KEY", "RSM_SECRET_KEY"):
        file = directory / f"s3-{name.removeprefix('RSM_').replace('_', '-').lower()}"
        moved[f"{name}_FILE"] = str(write_secret(file, moved.pop(name)))
    return moved


def rlmm_settings(database_url: str) -> dict[str, str]:
    return {"RLMM_DATABASE_URL": database_url}


def rlm_settings(
    rsm_address: str,
    rlmm_address: str,
    log_dirs: Sequence[Path],
    task_interval_ms: int | None,
    index_cache_dir: Path | None = None,
) -> dict[str, str]:
    """Return RLM's settings; None leaves the service's default."""
    settings = {
        "RLM_RSM_ADDRESS": rsm_address,
        "RLM_RLMM_ADDRESS": rlmm_address,
        "RLM_LOG_DIRS": ",".join(str(directory.absolute()) for directory in log_dirs),
    }
    if task_interval_ms is not None:
        settings["RLM_REMOTE_LOG_MANAGER_TASK_INTERVAL_MS"] = str(task_interval_ms)
    if index_cache_dir is not None:
        settings["RLM_REMOTE_LOG_INDEX_FILE_CACHE_DIR"] = str(index_cache_dir.absolute())
    return settings


def listen_settings(service: str, ports: Sequence[int], host: str) -> dict[str, str]:
    """Return a service's listen addresses for the ports of gRPC, health and metrics."""
    names = ("LISTEN_ADDRESS", "HEALTH_ADDRESS", "METRICS_ADDRESS")
    prefix = _PREFIXES[service]
    pairs = zip(names, ports, strict=True)
    return {f"{prefix}{name}": f"{host}:{port}" for name, port in pairs}


def transport_settings(service: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the choice of plaintext, unless the settings of a service choose a transport.

    Plaintext on loopback is open to the other users of this machine.
    """
    prefix = _PREFIXES[service]
    if {f"{prefix}TLS_CERTIFICATE_FILE", f"{prefix}PLAINTEXT"} & settings.keys():
        return {}
    return {f"{prefix}PLAINTEXT": "true"}


def one_process(service: str) -> dict[str, str]:
    """Return the choice of one process, which starts sooner than several."""
    return {} if service == "rlm" else {f"{_PREFIXES[service]}PROCESSES": "1"}


def settings_of(service: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Select the settings of one service."""
    prefix = _PREFIXES[service]
    return {name: value for name, value in settings.items() if name.startswith(prefix)}


def own_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our environment without any service's settings, plus `settings` and PROCESS_VARIABLES.

    A variable that was meant for another RSM never reaches the embedded one, and no secret of this
    shell reaches any service.
    """
    inherited = {name: value for name, value in os.environ.items() if not is_private(name)}
    return {**PROCESS_VARIABLES, **inherited, **settings}


_COMMAND_TIMEOUT_S = 300.0
_PRIVATE_MODE = 0o700


@dataclass(frozen=True)
class Announcement:
    """The line of JSON that a service prints when it is ready; addresses are HOST:PORT."""

    service: str
    address: str
    health: str
    metrics: str
    tokens: str = ""


class ServiceProcess(ServerProcess):
    """Run `python -m services.<name>` on loopback ports that stay the same over restarts.

    RSM and RLMM are one process each, unless the settings say otherwise.
    """

    _START_TIMEOUT_MS = 180_000

    def __init__(
        self,
        name: str,
        settings: Mapping[str, str],
        directory: Path,
        command: Sequence[str] | None = None,
        more_addresses: Sequence[str] = (),
    ) -> None:
        """Describe a service.

        Args:
            name: rsm, rlmm or rlm.
            command: replaces the service's command line.
            more_addresses: names of settings that get a port each, besides the usual three.
        """
        super().__init__(3 + len(more_addresses), directory / f"{name}.ports")
        self._name = name
        self._more_addresses = more_addresses
        self._settings = settings
        self._settings_of_start: Mapping[str, str] = {}
        self._directory = directory
        self._command = command or [sys.executable, "-m", f"services.{name}"]
        self._announcement: Announcement | None = None

    @property
    def announcement(self) -> Announcement:
        """Return the service's latest announcement."""
        if self._announcement is None:
            raise ProcessError(f"{self._name} was never ready")
        return self._announcement

    @property
    def address(self) -> str:
        """Return the address of the service's gRPC server."""
        return self.announcement.address

    def listen_address(self, setting: str) -> str:
        """Return the address that one of `more_addresses` has."""
        return f"{LOOPBACK}:{self._ports[3 + self._more_addresses.index(setting)]}"

    def start(self, settings: Mapping[str, str] | None = None) -> None:
        """Start the service and wait until it is ready; `settings` apply to this start only.

        Raises:
            ProcessError: the service ended or was not ready in time.
        """
        self._settings_of_start = settings or {}
        self._directory.mkdir(parents=True, exist_ok=True, mode=_PRIVATE_MODE)
        super().start()

    def _program(self) -> ChildProcess:
        listening = listen_settings(self._name, self._ports[:3], LOOPBACK)
        more = {name: self.listen_address(name) for name in self._more_addresses}
        settings = {**one_process(self._name), **self._settings, **listening, **more}
        settings |= self._settings_of_start
        settings |= transport_settings(self._name, settings)
        return ChildProcess(self._name, self._command, self._directory, own_environment(settings))

    def _is_ready(self) -> bool:
        line, end, _ = self.process.stdout_path.read_text().partition("\n")
        if not end:
            return False
        self._announcement = Announcement(**json.loads(line))
        return True


def run_to_end(command: Sequence[str], settings: Mapping[str, str]) -> str:
    """Run a command of the project to its end and return its stdout.

    Raises:
        ProcessError: the command failed; has its last error.
    """
    done = subprocess.run(
        command,
        env=own_environment(settings),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_S,
        check=False,
        start_new_session=True,  # a Ctrl-C at the terminal must not reach it
    )
    if done.returncode != 0:
        what = " ".join(command[1:])
        raise ProcessError(f"{what} ended with {done.returncode}: {last_error(done.stderr)}")
    return done.stdout


BUCKET = "sediment"
PREFIX = ""
DATABASE = "sediment"

LOGIN = "rlmm"
"""RLMM's login; it owns DATABASE and can use no other."""

READER = "sediment_reader"
"""The role of reports, to which `sediment db upgrade` grants what it may read."""

UPGRADE_SCHEMA = (sys.executable, "-m", "services.cli", "db", "upgrade", "-o", "json")
"""Command that runs with RLMM's settings before RLMM starts; prints the deployment's id."""

NOT_RUNNING = Announcement(service="", address="", health="", metrics="")


class _Part(Protocol):
    @property
    def process(self) -> ChildProcess: ...

    def is_running(self) -> bool: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


def _free_mib(directory: Path) -> int:
    return shutil.disk_usage(directory).free // (1024 * 1024)


def _require_room(directory: Path, needed_mib: int, why: str = "") -> None:
    free_mib = _free_mib(directory)
    if free_mib < needed_mib:
        raise ProcessError(
            f"no space left on {directory} ({free_mib} MiB free; `sediment up` needs {needed_mib} "
            f"MiB); free some, or choose another --data-dir{why}"
        )


def is_too_often(ends: Sequence[float]) -> bool:
    """Return whether a part that ended at these times, in seconds, is not to be started again."""
    return len(ends) > MAX_RESTARTS and ends[-1] - ends[-1 - MAX_RESTARTS] <= RESTARTS_WITHIN_S


class EmbeddedStack:
    """Run the stack on a data directory while the context is entered, and keep the data.

    However this process ends, its children end soon after; remains of an earlier run are ended
    before the start. Not thread-safe.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        log_dirs: Sequence[Path] = (),
        fresh: bool = False,
        task_interval_ms: int | None = None,
        settings: Mapping[str, str] | None = None,
        with_rlm: bool = True,
        s3: S3Server | None = None,
        store: Store = Store.S3,
        with_tls: bool = False,
        with_listener: bool = False,
    ) -> None:
        """Describe the stack.

        Args:
            data_dir: None for the default directory.
            fresh: delete the data of earlier runs.
            settings: more environment variables, RSM_*, RLMM_* or RLM_*; each goes only to the
                service of its prefix.
            with_rlm: False if a broker with the plugin schedules; RLM's endpoints are empty then.
            s3: a server to start and stop; None for SeaweedFS in the data directory.
            store: another kind than S3 is an emulator, and `s3` is never started.
            with_tls: serve with certificates of a throw-away authority, made at each start.
            with_listener: let RLM also serve consumers of Kafka.
        """
        self._directory = (data_dir or default_directory()).absolute()
        self._log_dirs = log_dirs
        self._fresh = fresh
        self._task_interval_ms = task_interval_ms
        self._settings = settings or {}
        self._with_rlm = with_rlm
        self._with_tls = with_tls
        self._rlm_addresses = (_CONSUMERS,) if with_listener else ()
        self._tls: StackTls | None = None
        self._cleanup = ExitStack()
        self._database_password = secrets.token_urlsafe(18)
        self._ends = defaultdict[str, list[float]](list)
        self._has_room = True
        self._deployment_id = ""
        self.services: dict[str, ServiceProcess] = {}
        self.postgres = EmbeddedPostgres(self._directory / POSTGRES)
        self.s3: S3Server = s3 or SeaweedFS(self._directory / Store.S3)
        self._kind = store
        self._emulator: StoreEmulator | None = None
        if store in EMULATORS:
            self._emulator = EMULATORS[store](self._directory / store)

    @property
    def endpoints(self) -> StackEndpoints:
        """Return the current addresses and pids."""
        at = self._store_endpoint
        rsm, rlmm = self.services["rsm"].announcement, self.services["rlmm"].announcement
        rlm = self.services["rlm"].announcement if self._with_rlm else NOT_RUNNING
        has_listener = self._with_rlm and self._rlm_addresses
        consumers = self.services["rlm"].listen_address(_CONSUMERS) if has_listener else ""
        pids = {name: service.process.pid for name, service in self.services.items()}
        return StackEndpoints(
            rsm=rsm.address,
            rsm_health=rsm.health,
            rsm_metrics=rsm.metrics,
            rlmm=rlmm.address,
            rlmm_health=rlmm.health,
            rlmm_metrics=rlmm.metrics,
            rlm=rlm.address,
            rlm_health=rlm.health,
            rlm_metrics=rlm.metrics,
            rlm_consumers=consumers,
            store=self._kind,
            s3_endpoint=at.endpoint,
            s3_region=at.region,
            s3_bucket=BUCKET,
            s3_prefix=PREFIX,
            locations_file=str(self._emulator.locations_file) if self._emulator else "",
            deployment_id=self._deployment_id,
            database_url=self._database_url(),
            credentials_file=str(self._directory / CREDENTIALS),
            data_directory=str(self._directory),
            tls_ca=str(self._tls.ca) if self._tls else "",
            tls_certificate=str(self._tls.operator.certificate) if self._tls else "",
            tls_key=str(self._tls.operator.key) if self._tls else "",
            pids={**pids, "postgres": self.postgres.pid, self._kind: self._store.process.pid},
        )

    @property
    def _store(self) -> S3Server | StoreEmulator:
        return self._emulator or self.s3

    @property
    def _store_endpoint(self) -> S3Endpoint:
        """Return the store's address; an emulator has neither keys of S3 nor a region."""
        if self._emulator is None:
            return self.s3.endpoint
        return S3Endpoint(self._emulator.address, "", "", "")

    @property
    def credentials(self) -> StackCredentials:
        """Return the secrets, which no output may have."""
        at, password = self._store_endpoint, self._database_password
        return StackCredentials(
            at.access_key, at.secret_key, password, self._database_url(f":{password}")
        )

    def _database_url(self, password: str = "") -> str:
        return f"postgresql+psycopg://{LOGIN}{password}@{LOOPBACK}:{self.postgres.port}/{DATABASE}"

    def watch(self) -> Iterator[str]:
        """Start the parts again that ended by themselves; yield what a person should know.

        Raises:
            ProcessError: a part ended too often, or does not start; or the disk is full.
        """
        had_room, self._has_room = self._has_room, _free_mib(self._directory) >= _FIRST_START_MIB
        if had_room and not self._has_room:
            yield f"{self._directory} has only {_free_mib(self._directory)} MiB left; free some"
        parts: dict[str, _Part] = {
            "postgres": self.postgres,
            self._kind: self._store,
            **self.services,
        }
        with self._full_disk_named():
            for name in [name for name, part in parts.items() if not part.is_running()]:
                part, log = parts[name], parts[name].process.log_path
                self._ends[name].append(time.monotonic())
                if is_too_often(self._ends[name]):
                    within = f"{MAX_RESTARTS} restarts within {RESTARTS_WITHIN_S:.0f} s"
                    raise ProcessError(f"{name} ended unexpectedly, after {within}; see {log}")
                part.kill()  # what is left of it
                part.start()
                write_state(self._directory, self.endpoints)
                yield f"{name} ended unexpectedly and was started again; see {log}.1"

    @contextmanager
    def _full_disk_named(self) -> Iterator[None]:
        """Name a full disk first, whatever failed because of it."""
        try:
            yield
        except Exception as e:
            _require_room(self._directory, _RESERVE_MIB, f": {e}")
            raise

    def __enter__(self) -> Self:
        """Start every part and wait until all of them are ready.

        Raises:
            DataDirectoryError: the data directory cannot be used.
            ClusterError, ProcessError: a part did not start; the others are stopped again.
        """
        check_apart(self._directory, self._log_dirs)
        with ExitStack() as cleanup:
            cleanup.enter_context(locked(self._directory, self._fresh))
            check_store(self._directory, self._kind)
            if self._emulator:
                self._emulator.ensure_built()
            is_first = not (self._directory / POSTGRES / "data").exists()
            _require_room(self._directory, _FIRST_START_MIB if is_first else _RESERVE_MIB)
            with self._full_disk_named():
                self._start(cleanup)
                write_credentials(self._directory, self.credentials)
                write_state(self._directory, self.endpoints)
            cleanup.callback(remove_state, self._directory)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()

    def _start(self, cleanup: ExitStack) -> None:
        self._tls = StackTls(self._directory / TLS) if self._with_tls else None
        # In parallel, because both take seconds. Parts that start later stop earlier.
        lanes = ThreadPoolExecutor(2)
        deployment_id = Future[str]()
        try:
            futures = [
                lanes.submit(self._start_metadata, cleanup, deployment_id),
                lanes.submit(self._start_store, cleanup, deployment_id),
            ]
            wait(futures)
        finally:
            # Also after a signal: nothing would stop a process that a lane starts after the clean-
            # up.
            lanes.shutdown(wait=True)
        for future in futures:
            future.result()
        if not self._with_rlm:
            return
        rsm, rlmm = self.services["rsm"].address, self.services["rlmm"].address
        settings = rlm_settings(
            rsm, rlmm, self._log_dirs, self._task_interval_ms, self._directory / INDEX_CACHE
        )
        self._start_service("rlm", settings, cleanup)

    def _start_metadata(self, cleanup: ExitStack, deployment_id: "Future[str]") -> None:
        try:
            self.postgres.start()
            cleanup.callback(self.postgres.stop)
            self.postgres.ensure_owned_database(DATABASE, LOGIN, self._database_password, READER)
            file = write_secret(
                self._directory / KEYS / "database-password", self._database_password
            )
            settings = {
                **rlmm_settings(self._database_url()),
                "RLMM_DATABASE_PASSWORD_FILE": str(file),
            }
            upgraded = json.loads(run_to_end(UPGRADE_SCHEMA, settings))
            deployment_id.set_result(upgraded["deployment_id"])
        except BaseException as e:
            # The other lane waits for this future.
            deployment_id.set_exception(e)
            raise
        self._start_service("rlmm", settings, cleanup)

    def _start_store(self, cleanup: ExitStack, deployment_id: "Future[str]") -> None:
        if self._emulator:
            self._emulator.start()
            # Azurite writes down at its end which blobs it has, else every few seconds.
            cleanup.callback(self._emulator.stop)
            self._emulator.ensure_bucket(BUCKET)
            settings = self._emulator.rsm_settings(BUCKET, PREFIX)
            # The library for these stores would take HTTP_PROXY for a way to this machine.
            settings["NO_PROXY"] = LOOPBACK
        else:
            self.s3.start()
            # Not stop(), which takes 15 s: every writer has stopped by then.
            cleanup.callback(self.s3.kill)
            self.s3.endpoint.ensure_bucket(BUCKET)
            settings = rsm_settings(self.s3.endpoint, BUCKET, PREFIX)
            settings = with_key_files(settings, self._directory / KEYS)
        self._deployment_id = deployment_id.result()
        settings["RSM_DEPLOYMENT_ID"] = self._deployment_id
        self._start_service("rsm", settings, cleanup)

    def _start_service(self, name: str, settings: dict[str, str], cleanup: ExitStack) -> None:
        tls = self._tls.settings(name) if self._tls else {}
        more = settings_of(name, self._settings)
        directory = self._directory / SERVICES
        directory.mkdir(mode=_PRIVATE_MODE, exist_ok=True)
        addresses = self._rlm_addresses if name == "rlm" else ()
        service = ServiceProcess(
            name, {**settings, **tls, **more}, directory, more_addresses=addresses
        )
        service.start()
        cleanup.callback(service.stop)
        self.services[name] = service
