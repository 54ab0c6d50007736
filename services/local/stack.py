"""Everything on one machine: PostgreSQL, an S3 server and the three services, as processes."""

import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from services.local.data_directory import (
    INDEX_CACHE,
    POSTGRES,
    S3,
    SERVICES,
    check_apart,
    default_directory,
    locked,
)
from services.local.environments import (
    rlm_settings,
    rlmm_settings,
    rsm_settings,
    settings_of,
)
from services.local.postgres import EmbeddedPostgres
from services.local.s3_endpoint import S3Server
from services.local.seaweedfs import SeaweedFS
from services.local.service import Announcement, ServiceProcess, run_to_end
from services.local.state import StackEndpoints, remove_state, write_state

BUCKET = "sediment"
PREFIX = ""
DATABASE = "sediment"
UPGRADE_SCHEMA = (sys.executable, "-m", "services.cli", "db", "upgrade", "-o", "json")
"""Run with RLMM's settings before RLMM starts; answers the deployment's id."""
NOT_RUNNING = Announcement(service="", address="", health="", metrics="")


class EmbeddedStack:
    """The stack on a data directory, which it keeps; runs while it is entered.

    Whatever way this process ends, all that it started ends soon after; should it still find
    something left of an earlier run, it ends that before it starts. Not thread-safe.
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
    ) -> None:
        """`data_dir` of None is the default directory; `fresh` forgets what it holds.

        `s3` is started and ended here; None: SeaweedFS, in the data directory.

        Without RLM a broker with the plugin schedules; the endpoints of RLM are empty then.

        `settings` are more environment variables, RSM_*, RLMM_* or RLM_*; each goes to the service
        of its prefix only.
        """
        self._directory = (data_dir or default_directory()).absolute()
        self._log_dirs = log_dirs
        self._fresh = fresh
        self._task_interval_ms = task_interval_ms
        self._settings = settings or {}
        self._with_rlm = with_rlm
        self._cleanup = ExitStack()
        self.services: dict[str, ServiceProcess] = {}
        self.postgres = EmbeddedPostgres(self._directory / POSTGRES)
        self.s3: S3Server = s3 or SeaweedFS(self._directory / S3)

    @property
    def endpoints(self) -> StackEndpoints:
        """Where everything is; pids are those of now."""
        s3 = self.s3.endpoint
        rsm, rlmm = self.services["rsm"].announcement, self.services["rlmm"].announcement
        rlm = self.services["rlm"].announcement if self._with_rlm else NOT_RUNNING
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
            s3_endpoint=s3.endpoint,
            s3_region=s3.region,
            s3_access_key=s3.access_key,
            s3_secret_key=s3.secret_key,
            s3_bucket=BUCKET,
            s3_prefix=PREFIX,
            database_url=self.postgres.url(DATABASE),
            data_directory=str(self._directory),
            pids={**pids, "postgres": self.postgres.pid, "s3": self.s3.pid},
        )

    def ended(self) -> list[str]:
        """Where the logs are of the parts that ended by themselves; empty: all of it runs."""
        services = [service.process for service in self.services.values()]
        ended = [str(process.log_path) for process in services if not process.is_running()]
        if not self.postgres.is_running():
            ended.append(str(self._directory / POSTGRES))
        if not self.s3.is_running():
            ended.append(str(self._directory / S3))
        return ended

    def __enter__(self) -> Self:
        """Start everything and wait until all of it is ready.

        Raises:
            DataDirectoryError: the data directory cannot be used.
            ClusterError, ProcessError: a part did not start; what did is stopped again.
        """
        check_apart(self._directory, self._log_dirs)
        with ExitStack() as cleanup:
            cleanup.enter_context(locked(self._directory, self._fresh))
            self._start(cleanup)
            write_state(self._directory, self.endpoints)
            cleanup.callback(remove_state, self._directory)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def _start(self, cleanup: ExitStack) -> None:
        # Side by side, for both take seconds. What is started later is stopped earlier.
        lanes = ThreadPoolExecutor(2)
        deployment_id = Future[str]()
        try:
            futures = [
                lanes.submit(self._start_metadata, cleanup, deployment_id),
                lanes.submit(self._start_store, cleanup, deployment_id),
            ]
            wait(futures)
        finally:
            # Also when a signal ends us: what a lane started after the clean-up nobody would stop.
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
            settings = rlmm_settings(self.postgres.ensure_database(DATABASE))
            upgraded = json.loads(run_to_end(UPGRADE_SCHEMA, settings))
            deployment_id.set_result(upgraded["deployment_id"])
        except BaseException as e:
            # The other lane waits for it.
            deployment_id.set_exception(e)
            raise
        self._start_service("rlmm", settings, cleanup)

    def _start_store(self, cleanup: ExitStack, deployment_id: "Future[str]") -> None:
        self.s3.start()
        # Not stop(): that waits 15 s, and those who write are gone before.
        cleanup.callback(self.s3.kill)
        self.s3.endpoint.ensure_bucket(BUCKET)
        settings = rsm_settings(self.s3.endpoint, BUCKET, PREFIX, deployment_id.result())
        self._start_service("rsm", settings, cleanup)

    def _start_service(self, name: str, settings: dict[str, str], cleanup: ExitStack) -> None:
        more = settings_of(name, self._settings)
        service = ServiceProcess(name, {**settings, **more}, self._directory / SERVICES)
        service.start()
        cleanup.callback(service.stop)
        self.services[name] = service
