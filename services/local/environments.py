"""What the services are told through their environment: the one place that knows their settings."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.local.s3_endpoint import S3Endpoint

_PREFIXES = {"rsm": "RSM_", "rlmm": "RLMM_", "rlm": "RLM_"}


def rsm_settings(
    s3: S3Endpoint, bucket: str, prefix: str, deployment_id: str = ""
) -> dict[str, str]:
    """Without a `deployment_id` the prefix is not marked."""
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


def rlmm_settings(database_url: str) -> dict[str, str]:
    return {"RLMM_DATABASE_URL": database_url}


def rlm_settings(
    rsm_address: str,
    rlmm_address: str,
    log_dirs: Sequence[Path],
    task_interval_ms: int | None,
    index_cache_dir: Path | None = None,
) -> dict[str, str]:
    """`task_interval_ms` of None leaves the service's default, as `index_cache_dir` does."""
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
    """Ports for gRPC, health and metrics, in this order."""
    names = ("LISTEN_ADDRESS", "HEALTH_ADDRESS", "METRICS_ADDRESS")
    prefix = _PREFIXES[service]
    pairs = zip(names, ports, strict=True)
    return {f"{prefix}{name}": f"{host}:{port}" for name, port in pairs}


def settings_of(service: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Those of `settings` that are for this service."""
    prefix = _PREFIXES[service]
    return {name: value for name, value in settings.items() if name.startswith(prefix)}


def own_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Our environment without any service's settings, plus `settings`.

    So a variable that was meant for another RSM never reaches the embedded one.
    """
    prefixes = tuple(_PREFIXES.values())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, **settings}
