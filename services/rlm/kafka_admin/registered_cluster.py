"""Which cluster a broker belongs to, as its log directories tell."""

import re
from collections.abc import Sequence
from pathlib import Path

from services.rlm.kafka_log.checkpoints import META_PROPERTIES
from services.rlm.kafka_log.errors import LogDirError, LogFileError
from services.rlm.kafka_log.partition_dir import read_side_file

_CLUSTER_ID = re.compile(r"^cluster\.id[ \t]*=[ \t]*(\S+)\s*$", re.MULTILINE)


def read_cluster_id(log_dirs: Sequence[Path]) -> str:
    """cluster.id of the meta.properties of these directories; those that have none now are passed.

    Raises:
        LogDirError: none names it, or they name several.
    """
    ids: dict[str, Path] = {}
    for log_dir in log_dirs:
        path = log_dir / META_PROPERTIES
        try:
            data = read_side_file(path)
        except LogFileError:
            continue
        found = _CLUSTER_ID.search((data or b"").decode("utf-8", "replace"))
        if found:
            ids.setdefault(found[1], path)
    if len(ids) > 1:
        told = ", ".join(f"{cluster_id} in {path}" for cluster_id, path in ids.items())
        raise LogDirError(log_dirs[0], f"log directories of several clusters: {told}")
    if not ids:
        raise LogDirError(log_dirs[0] / META_PROPERTIES, "names no cluster.id")
    return next(iter(ids))
