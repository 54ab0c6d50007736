"""Check the settings in the environment, and the bucket, database, files and brokers they name."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import uuid_to_text
from services.cli.config import CLASSES, configured_services, similar_setting
from services.cli.doctor_findings import Check, Finding, Level, store_findings
from services.cli.doctor_services import file_finding
from services.common.console_settings import ConsoleSettings
from services.common.reloaded_file import FileError
from services.common.settings import ServiceSettings, VariableSettings
from services.local.data_directory import StackEndpoints, read_credentials, running_stack
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError
from services.rlm.kafka_admin.deleted_topics import read_cluster_id
from services.rlm.kafka_log.log_dir import find_partitions
from services.rlm.kafka_log.partition_dir import LogDirError
from services.rlm.roles.partition_roles import PartitionSource
from services.rlm.settings import RlmSettings
from services.rlmm.database import schema
from services.rlmm.database.schema_revision import known_revision
from services.rlmm.settings import RlmmSettings
from services.rpc.server.policy import load_policy
from services.rpc.tls import TlsFiles
from services.rsm.factory import build_locations, build_start_up
from services.rsm.settings import RsmSettings
from services.views.texts import time_text

_BROKEN = ("table ", "column ", "view ", "schema ")
"""How the parts of a database begin without which RLMM does not work."""


@dataclass(frozen=True)
class Environment:
    """The settings that can be checked here.

    Attributes:
        services: those whose settings are in the environment: RSM, RLMM, RLM, CONSOLE.
        stack: the `sediment up` that runs here; only if there are no settings.
    """

    services: tuple[str, ...]
    stack: StackEndpoints | None

    @classmethod
    def present(cls, data_dir: Path | None) -> Self:
        """Look for settings in the environment, else for a running `sediment up`.

        Raises:
            DataDirectoryError: the data directory cannot be used.
        """
        services = tuple(configured_services(os.environ))
        return cls(services, None if services else running_stack(data_dir))


def environment_checks(environment: Environment) -> dict[str, Check]:
    """Return the checks of settings and of what they name, by name."""
    if environment.stack is not None:
        credentials = read_credentials(environment.stack)
        database = partial(_check_database, credentials.database_url, None)
        return {"database": database, "bucket": partial(_check_stacks_bucket, environment.stack)}
    if not environment.services:
        text = (
            "no settings (RSM_*, RLMM_*, RLM_*, CONSOLE_*) here: neither settings, bucket nor "
            "database "
        )
        hint = "run `sediment doctor` where the services run, or `sediment config check FILE`"
        skipped = Finding("settings", Level.SKIP, f"{text}are checked", hint)
        return {"settings": lambda: iter([*_mistyped_settings(()), skipped])}
    checks: dict[str, Check] = {}
    problems = [*_mistyped_settings(environment.services)]
    for service in environment.services:
        try:
            settings = CLASSES[service].from_environment()
        except SystemExit as e:
            problems += [_bad_setting(line) for line in str(e).splitlines()]
            continue
        problems.append(Finding("settings", Level.OK, f"{service}_*: valid"))
        checks |= _checks_of(settings)
    return {"settings": lambda: iter(problems), **checks}


def _mistyped_settings(services: Collection[str]) -> Iterator[Finding]:
    """Name what looks like a setting of a service that nothing else here configures."""
    for service, settings in CLASSES.items():
        if service in services:
            continue
        for name in os.environ:
            similar = similar_setting(name) if name.upper().startswith(f"{service}_") else None
            if similar and name.upper() not in settings.variables():
                text = f"unknown setting: {name} (did you mean {similar}?)"
                yield Finding("settings", Level.WARN, text, "see docs/reference/config.md")


def _bad_setting(problem: str) -> Finding:
    return Finding("settings", Level.FAIL, problem, "see docs/reference/config.md")


def _checks_of(settings: VariableSettings) -> dict[str, Check]:
    """Return the checks of what the settings of a service name."""
    prefix = settings.model_config["env_prefix"].rstrip("_")
    checks: dict[str, Check] = {}
    if isinstance(settings, ServiceSettings | ConsoleSettings) and settings.has_tls:
        checks[f"{prefix} files"] = partial(_check_files, settings)
    if isinstance(settings, RsmSettings):
        checks["bucket"] = partial(_check_bucket, settings)
    if isinstance(settings, RlmmSettings):
        url, file = settings.database_url.get_secret_value(), settings.database_password_file
        checks["database"] = partial(_check_database, url, file)
    if isinstance(settings, RlmSettings) and settings.log_dirs:
        checks["log directories"] = partial(_check_log_dirs, settings)
    if isinstance(settings, RlmSettings) and settings.partition_source is PartitionSource.POLLER:
        checks["cluster"] = partial(_check_cluster, settings)
    return checks


def _check_files(settings: ServiceSettings | ConsoleSettings) -> Iterator[Finding]:
    """Check the files of a service's TLS, and its policy."""
    name = "files"
    own = TlsFiles(
        settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file
    )
    yield file_finding(name, own)
    if settings.policy_file is not None:
        try:
            grants = load_policy(settings.policy_file).grants
        except FileError as e:
            yield Finding(name, Level.FAIL, str(e), f"sediment policy check {settings.policy_file}")
        else:
            yield Finding(name, Level.OK, f"{settings.policy_file}: {len(grants):,} grants")


def _check_database(url: str, password_file: Path | None) -> Iterator[Finding]:
    """Check that the database answers, and that its schema is this release's."""
    name = "database"
    try:
        problems = schema.check_schema(url, password_file)
    except RemoteStorageError as e:
        hint = "check RLMM_DATABASE_URL, the network and `pg_isready`; run `sediment db check`"
        yield Finding(name, Level.FAIL, str(e), hint)
        return
    if not problems:
        yield Finding(name, Level.OK, f"schema {known_revision()}, as this release expects it")
    for problem in problems:
        level = Level.FAIL if problem.what.startswith(_BROKEN) else Level.WARN
        hint = "sediment db upgrade" if level is Level.FAIL else "sediment db check"
        yield Finding(name, level, f"{problem.what} {problem.problem}", hint)
    frozen_ms = schema.deletions_frozen_since_ms(url, password_file)
    if frozen_ms is not None:
        text = f"deletions are frozen since {time_text(frozen_ms, 'seconds')}, by a rebuild"
        yield Finding(name, Level.WARN, text, "sediment db confirm-rebuild")


def _check_stacks_bucket(stack: StackEndpoints) -> Iterator[Finding]:
    credentials = read_credentials(stack)
    deployment = uuid_to_text(schema.deployment_id(credentials.database_url))
    yield from _check_bucket(
        RsmSettings(
            backend="s3",
            endpoint=stack.s3_endpoint,
            region=stack.s3_region,
            bucket=stack.s3_bucket,
            prefix=stack.s3_prefix,
            secure=False,
            access_key=SecretStr(credentials.s3_access_key),
            secret_key=SecretStr(credentials.s3_secret_key),
            deployment_id=deployment,
        )
    )


def _check_bucket(settings: RsmSettings) -> Iterator[Finding]:
    """Check that RSM could use its store: reachable, its own, with all capabilities."""
    name, hint = "bucket", "sediment store probe"
    try:
        report = build_start_up(settings, build_locations(settings)).inspect()
    except RetriableRemoteStorageError as e:
        yield Finding(name, Level.FAIL, str(e), "check RSM_ENDPOINT, the network and the keys")
        return
    except (RemoteStorageError, SystemExit) as e:
        yield Finding(name, Level.FAIL, str(e), hint)
        return
    for finding in report.refused:
        yield Finding(name, Level.FAIL, f"{report.location.place}: {finding}", hint)
    for finding in report.degraded:
        yield Finding(name, Level.WARN, f"{report.location.place}: {finding}", hint)
    if not report.refused:
        yield Finding(name, Level.OK, f"{report.location.place}: RSM can use it")
    yield from store_findings(name, report.rules)
    if not settings.deployment_id:
        text = "RSM_DEPLOYMENT_ID is not set: nothing keeps another deployment from this bucket"
        yield Finding(name, Level.WARN, text, "sediment db deployment-id")


def _check_log_dirs(settings: RlmSettings) -> Iterator[Finding]:
    name = "log directories"
    try:
        found = find_partitions(settings.log_dirs)
    except LogDirError as e:
        hint = "check RLM_LOG_DIRS, and that RLM's user may read them"
        yield Finding(name, Level.FAIL, str(e), hint)
        return
    directories = ", ".join(map(str, settings.log_dirs))
    yield Finding(name, Level.OK, f"{directories}: {len(found.partitions):,} partitions")


def _check_cluster(settings: RlmSettings) -> Iterator[Finding]:
    """Check that the poller's brokers answer, and that they are of the expected cluster."""
    name = "cluster"
    try:
        wanted = settings.cluster_id or read_cluster_id(settings.log_dirs)
        view = KafkaAdmin(settings.bootstrap_servers, security=settings.kafka_security()).view(())
    except LogDirError as e:
        yield Finding(name, Level.FAIL, str(e), "check RLM_LOG_DIRS, or set RLM_CLUSTER_ID")
        return
    except ClusterUnreachableError as e:
        hint = "check RLM_BOOTSTRAP_SERVERS, RLM_KAFKA_* and that a broker runs"
        yield Finding(name, Level.FAIL, str(e), hint)
        return
    if view.cluster_id == wanted:
        yield Finding(name, Level.OK, f"{wanted}: its brokers answer")
        return
    text = f"RLM_BOOTSTRAP_SERVERS are of cluster {view.cluster_id}, RLM is of {wanted}"
    yield Finding(name, Level.FAIL, text, "correct RLM_BOOTSTRAP_SERVERS")
