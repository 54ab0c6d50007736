"""Renewals of leases, remote_log_metadata_manager.proto."""

from google.rpc import code_pb2, status_pb2

from services.api.copy_leases import RenewOutcome
from services.rpc.statuses import error_of, status_of


def renew_outcome_to_proto(outcome: RenewOutcome) -> status_pb2.Status:
    return status_pb2.Status() if outcome is None else status_of(outcome)


def renew_outcome_from_proto(message: status_pb2.Status) -> RenewOutcome:
    return None if message.code == code_pb2.OK else error_of(message)
