"""Read the records of tiered partitions: `from services.client import TierConsumer`."""

from services.api.offset_queries import SpecialTime
from services.api.remote_log_manager import IsolationLevel, RecordSource
from services.client.consumer import AtTime, TierConsumer
from services.client.records import ReadFailedError, Record, RecordKind, UnreadableBatchError
from services.common.client_security import PLAINTEXT, ClientSecurity

__all__ = [
    "PLAINTEXT",
    "AtTime",
    "ClientSecurity",
    "IsolationLevel",
    "ReadFailedError",
    "Record",
    "RecordKind",
    "RecordSource",
    "SpecialTime",
    "TierConsumer",
    "UnreadableBatchError",
]
