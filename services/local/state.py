"""The file by which other commands find a running stack."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from services.local.data_directory import (
    OWNER,
    STATE,
    DataDirectoryError,
    default_directory,
)
from services.local.leftovers import names_running_process, write_pid_file


@dataclass(frozen=True)
class StackEndpoints:
    """Where everything of a running stack is; addresses are HOST:PORT, empty: it runs none."""

    rsm: str
    rsm_health: str
    rsm_metrics: str
    rlmm: str
    rlmm_health: str
    rlmm_metrics: str
    rlm: str
    rlm_health: str
    rlm_metrics: str
    s3_endpoint: str
    s3_region: str
    s3_access_key: str
    s3_secret_key: str
    s3_bucket: str
    s3_prefix: str
    database_url: str
    data_directory: str
    pids: dict[str, int]


def write_state(directory: Path, endpoints: StackEndpoints) -> None:
    """Say that this process runs a stack on `directory`; readable by its user only."""
    making = directory / f"{STATE}.new"
    making.unlink(missing_ok=True)
    making.touch(mode=0o600)
    making.write_text(json.dumps(asdict(endpoints), indent=2) + "\n")
    write_pid_file(directory / OWNER, os.getpid())
    making.rename(directory / STATE)


def remove_state(directory: Path) -> None:
    """Take back `write_state`; nothing to take back is no error."""
    (directory / STATE).unlink(missing_ok=True)
    (directory / OWNER).unlink(missing_ok=True)


def running_stack(directory: Path | None = None) -> StackEndpoints | None:
    """The stack that runs on `directory` (default: the default one) now, or None.

    Raises:
        DataDirectoryError: what the directory says of it cannot be read.
    """
    where = directory or default_directory()
    state = where / STATE
    try:
        stored = state.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as e:
        why = e.strerror or type(e).__name__
        raise DataDirectoryError(
            f"{state} cannot be read: {why}; name the data directory of a `sediment up` of yours"
        ) from e
    if not names_running_process(where / OWNER):
        return None  # killed before it could take its state back
    try:
        return StackEndpoints(**json.loads(stored))
    except (ValueError, TypeError) as e:
        raise DataDirectoryError(
            f"{state} is damaged or of another release of Sediment; "
            "stop the `sediment up` that runs on it and start this one's"
        ) from e
