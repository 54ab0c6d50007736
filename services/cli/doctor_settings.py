"""Check the settings in the environment, and the bucket, database, files and brokers they name."""

import os
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from services.cli.config import CLASSES, rsm_settings_of, similar_setting
from services.cli.doctor_findings import Check, Finding, Level, finding_of, store_findings
from services.cli.doctor_services import file_finding
from services.common.console_settings import ConsoleSettings
from services.common.quantities import counted
from services.common.settings import ServiceSettings, VariableSettings
from services.local.data_directory import read_credentials, running_stack
from services.rlm.kafka_admin.client import KafkaAdmin
from services.rlm.kafka_log.log_dir import find_partitions, read_cluster_id
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
from services.views.tier import disk_line

_BROKEN = ("table ", "column ", "view ", "schema ")
"""How the parts of a database begin without which RLMM does not work."""
_NEXT_OF_BUCKET = "check RSM_ENDPOINT, the network and the keys; run `sediment store probe`"
_NEXT_OF_SETTING = "see docs/reference/config.md"


def environment_checks(services: Sequence[str], data_dir: Path | None) -> list[Check]:
    """Return the checks of the settings of these services, and of what the settings name.

    Without services, what the running `sediment up` has is checked.

    Raises:
        DataDirectoryError: the data directory cannot be used.
    """
    stack = None if services else running_stack(data_dir)
    if stack is not None:
        return [
            _database_check(read_credentials(stack).database_url, None),
            Check("bucket", partial(_check_bucket, rsm_settings_of(stack)), _NEXT_OF_BUCKET),
            Check("disk", partial(_check_disks, [Path(stack.data_directory)])),
        ]
    problems, checks = [*_mistyped_settings(services)], list[Check]()
    for service in services:
        try:
            settings = CLASSES[service].from_environment()
        except SystemExit as e:
            problems += [
                Finding("settings", Level.FAIL, line, _NEXT_OF_SETTING)
                for line in str(e).splitlines()
            ]
            continue
        problems.append(Finding("settings", Level.OK, f"{service}_*: valid"))
        checks += _checks_of(settings)
    if not services:
        text = (
            "no settings (RSM_*, RLMM_*, RLM_*, CONSOLE_*) here: neither settings, bucket nor "
            "database are checked"
        )
        hint = "run `sediment doctor` where the services run, or `sediment config check FILE`"
        problems.append(Finding("settings", Level.SKIP, text, hint))
    return [Check("settings", lambda: iter(problems)), *checks]


def _mistyped_settings(services: Collection[str]) -> Iterator[Finding]:
    """Name what looks like a setting of a service that nothing else here configures."""
    for service, settings in CLASSES.items():
        if service in services:
            continue
        for name in os.environ:
            similar = similar_setting(name) if name.upper().startswith(f"{service}_") else None
            if similar and name.upper() not in settings.variables():
                text = f"unknown setting: {name} (did you mean {similar}?)"
                yield Finding("settings", Level.WARN, text, _NEXT_OF_SETTING)


def _checks_of(settings: VariableSettings) -> Iterator[Check]:
    """Yield the checks of what the settings of a service name."""
    if isinstance(settings, ServiceSettings | ConsoleSettings) and settings.has_tls:
        hint = f"sediment policy check {settings.policy_file}"
        yield Check("files", partial(_check_files, settings), hint)
    if isinstance(settings, RsmSettings):
        yield Check("bucket", partial(_check_bucket, settings), _NEXT_OF_BUCKET)
    if isinstance(settings, RlmmSettings):
        url = settings.database_url.get_secret_value()
        yield _database_check(url, settings.database_password_file)
    if isinstance(settings, RlmSettings) and settings.log_dirs:
        hint = "check RLM_LOG_DIRS, and that RLM's user may read them"
        yield Check("log directories", partial(_check_log_dirs, settings), hint)
        cache = settings.remote_log_index_file_cache_dir
        directories = [*settings.log_dirs, *([cache] if cache else [])]
        yield Check("disk", partial(_check_disks, directories))
    if isinstance(settings, RlmSettings) and settings.partition_source is PartitionSource.POLLER:
        hint = (
            "check RLM_BOOTSTRAP_SERVERS, RLM_KAFKA_* and that a broker runs; RLM_CLUSTER_ID, if "
            "RLM_LOG_DIRS do not name the cluster"
        )
        yield Check("cluster", partial(_check_cluster, settings), hint)


def _database_check(url: str, password_file: Path | None) -> Check:
    hint = "check RLMM_DATABASE_URL, the network and `pg_isready`; run `sediment db check`"
    return Check("database", partial(_check_database, url, password_file), hint)


def _check_files(settings: ServiceSettings | ConsoleSettings) -> Iterator[Finding]:
    """Check the files of a service's TLS, and its policy."""
    name = "files"
    own = TlsFiles(
        settings.tls_certificate_file, settings.tls_key_file, settings.tls_client_ca_file
    )
    yield file_finding(name, own)
    if settings.policy_file is not None:
        grants = load_policy(settings.policy_file).grants
        yield Finding(name, Level.OK, f"{settings.policy_file}: {counted(len(grants), 'grant')}")


def _check_database(url: str, password_file: Path | None) -> Iterator[Finding]:
    """Check that the database answers, and that its schema is this release's."""
    name = "database"
    problems = schema.check_schema(url, password_file)
    if not problems:
        yield Finding(name, Level.OK, f"schema {known_revision()}, as this release expects it")
    for problem in problems:
        level = Level.FAIL if problem.what.startswith(_BROKEN) else Level.WARN
        hint = "sediment db upgrade" if level is Level.FAIL else "sediment db check"
        yield Finding(name, level, f"{problem.what} {problem.problem}", hint)
    frozen_ms = schema.deletions_frozen_since_ms(url, password_file)
    if frozen_ms is not None:
        text = f"deletions are frozen since {time_text(frozen_ms)}, by a rebuild"
        yield Finding(name, Level.WARN, text, "sediment db confirm-rebuild")


def _check_bucket(settings: RsmSettings) -> Iterator[Finding]:
    """Check that RSM could use its store: reachable, its own, with all capabilities."""
    name, hint = "bucket", "sediment store probe"
    report = build_start_up(settings, build_locations(settings)).inspect()
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
    log_dirs = find_partitions(settings.log_dirs)
    directories = ", ".join(map(str, settings.log_dirs))
    text = f"{directories}: {counted(len(log_dirs.partitions), 'partition')}"
    yield Finding("log directories", Level.OK, text)


def _check_disks(directories: Sequence[Path]) -> Iterator[Finding]:
    """Check the space that each disk with one of these directories has left."""
    by_disk = {each.stat().st_dev: each for each in directories if each.exists()}
    for directory in by_disk.values():
        yield finding_of("disk", disk_line(directory))


def _check_cluster(settings: RlmSettings) -> Iterator[Finding]:
    """Check that the poller's brokers answer, and that they are of the expected cluster."""
    wanted = settings.cluster_id or read_cluster_id(settings.log_dirs)
    view = KafkaAdmin(settings.bootstrap_servers, security=settings.kafka_security()).view(())
    if view.cluster_id == wanted:
        yield Finding("cluster", Level.OK, f"{wanted}: its brokers answer")
        return
    text = f"RLM_BOOTSTRAP_SERVERS are of cluster {view.cluster_id}, RLM is of {wanted}"
    yield Finding("cluster", Level.FAIL, text, "correct RLM_BOOTSTRAP_SERVERS")
