"""A client of the admin API, where one is installed."""

from collections.abc import Sequence
from importlib.util import find_spec

from services.rlm.kafka_admin.cluster_view import ClusterAdmin

REQUEST_TIMEOUT_S = 10.0
_KAFKA_CLIENT = "kafka"


class KafkaClientMissingError(Exception):
    """The extra `kafka` is not installed."""


def connect_admin(
    bootstrap_servers: Sequence[str], timeout_s: float = REQUEST_TIMEOUT_S
) -> ClusterAdmin:
    """It connects when it is asked, each time anew.

    Raises:
        KafkaClientMissingError: there is nothing to connect with.
    """
    if find_spec(_KAFKA_CLIENT) is None:
        raise KafkaClientMissingError(
            "this needs a Kafka client, which is not installed here: pip install 'sediment[kafka]'"
        )
    # Of an extra, which only who polls has.
    from services.rlm.kafka_admin.admin_client import KafkaAdmin  # noqa: PLC0415

    return KafkaAdmin(bootstrap_servers, timeout_s)
