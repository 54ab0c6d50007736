"""A client of the admin API, where one is installed."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from services.rlm.kafka_admin.client_security import client_security
from services.rlm.kafka_admin.cluster_view import ClusterAdmin

REQUEST_TIMEOUT_S = 10.0
_KAFKA_CLIENT = ("kafka", "javaproperties")


class KafkaClientMissingError(Exception):
    """The extra `kafka` is not installed."""


def connect_admin(
    bootstrap_servers: Sequence[str],
    config_file: Path | None = None,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> ClusterAdmin:
    """It connects when it is asked, each time anew and as `config_file` says then.

    Raises:
        KafkaClientMissingError: there is nothing to connect with.
        ClientConfigError: the file cannot be used as it is now.
    """
    if any(find_spec(name) is None for name in _KAFKA_CLIENT):
        raise KafkaClientMissingError(
            "this needs a Kafka client, which is not installed here: in Sediment's checkout, "
            f"{sys.executable} -m pip install -e '.[kafka]'"
        )
    # Of an extra, which only who polls has.
    from services.rlm.kafka_admin.admin_client import KafkaAdmin  # noqa: PLC0415

    client_security(config_file)
    return KafkaAdmin(bootstrap_servers, timeout_s, config_file)
