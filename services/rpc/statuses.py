"""Map errors of services.api to google.rpc.Status and back; nothing else maps them.

Out: the class gives status and reason. Back: by ErrorInfo.reason, never by the status alone,
because a transport invents statuses of its own.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from services.api.calls import current_call
from services.api.errors import (
    NotServedError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    every_error_class,
)

DOMAIN = "sediment"

_NOT_SERVED_THERE = (
    "the server at this address does not serve this call; check that it is not the address of "
    "another service (RSM's and RLMM's swapped)"
)

_NOT_CONNECTED = ("failed to connect", "connections to all backends failing")
_NO_HANDSHAKE = (
    "handshake failed",
    "Verification Check failed",
    "Socket closed",
    "reset by peer",
    # localhost has this address, too, and servers listen on 127.0.0.1 by default: the refusal here
    # may come last and hide how the handshake failed there.
    "ipv6:%5B::1%5D",
)

_PLAIN_WORDS = (
    # Of a process that hangs, or of no gRPC server, that accepted a connection.
    ("before receiving SETTINGS frame", "the server accepts connections, and does not answer"),
    ("http1.x server", "the server speaks HTTP/1, not gRPC"),
    ("WRONG_VERSION_NUMBER", "the server does not speak TLS"),
    ("certificate has expired", "the server's certificate has expired"),
    ("certificate is not yet valid", "the server's certificate is not yet valid"),
    ("local issuer certificate", "the server's certificate is of no authority in the CA file"),
    ("self signed certificate", "the server's certificate is of no authority in the CA file"),
    ("unsupported certificate purpose", "the server's certificate is not one for a server"),
    ("Hostname Verification", "the server's certificate is for another host name"),
    ("Socket closed", "the server closed the connection"),
)
"""What is in gRPC's details of a call whose connection failed, and what it means."""

_log = logging.getLogger("sediment.rpc")
_CLASS_BY_REASON = {cls.reason: cls for cls in every_error_class()}


def status_code(error: RemoteStorageError) -> grpc.StatusCode:
    """Return the gRPC status of the error's class."""
    return grpc.StatusCode[error.status]


def status_of(error: RemoteStorageError) -> status_pb2.Status:
    """Return the error's status and message, and ErrorInfo with its reason.

    Details of a bare RemoteStorageError may hold paths, SQL or addresses: they are logged, and the
    caller gets a fixed text with the request id.
    """
    message = str(error)
    if type(error) is RemoteStorageError:
        request_id = current_call().request_id
        _log_cause(error, request_id)
        message = f"internal error; find the cause in the service's log by request id {request_id}"
    info = any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))
    return status_pb2.Status(code=status_code(error).value[0], message=message, details=[info])


def _log_cause(error: RemoteStorageError, request_id: str) -> None:
    """Log the cause; each class of cause has a limit of lines of its own."""
    text = f"internal error ({type(error.__cause__ or error).__name__})"
    _log.error(text, extra={"request_id": request_id}, exc_info=error)


def error_of(status: status_pb2.Status) -> RemoteStorageError:
    """Return the error that `status_of` was given.

    Without our reason the call may have taken effect, so the error is retriable; not so for
    UNIMPLEMENTED: a server without the method did nothing.
    """
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        with suppress(DecodeError):
            if detail.Unpack(info) and info.domain == DOMAIN and info.reason in _CLASS_BY_REASON:
                return _CLASS_BY_REASON[info.reason](status.message)
    name = _name_of(status.code)
    if name == grpc.StatusCode.UNIMPLEMENTED.name:
        return NotServedError(status.message)
    return RetriableRemoteStorageError(f"{name}: {status.message}")


def status_of_outcome(outcome: RemoteStorageError | None) -> status_pb2.Status:
    """Return the status of one item of a batch; None (done) is OK."""
    return status_pb2.Status() if outcome is None else status_of(outcome)


def outcome_of(status: status_pb2.Status) -> RemoteStorageError | None:
    """Convert the status of an item back to its outcome."""
    return None if status.code == code_pb2.OK else error_of(status)


@dataclass(frozen=True, slots=True)
class Peer:
    """The server of a channel, for messages; `hint` says what to check if no connection opens."""

    name: str
    hint: str = ""

    def __str__(self) -> str:
        return self.name


@contextmanager
def map_rpc_errors(peer: Peer | str, timeout_s: float | None = None) -> Iterator[None]:
    """Raise a failed call's class of services.api.errors; `peer` names the server in messages."""
    try:
        yield
    except grpc.RpcError as e:
        raise _error_of_call(e, peer, timeout_s) from e


def _error_of_call(
    error: grpc.RpcError, peer: Peer | str, timeout_s: float | None
) -> RemoteStorageError:
    if not isinstance(error, grpc.Call):
        return RetriableRemoteStorageError(f"{peer}: {error}")
    status = _status_of_call(error)
    if status is not None:
        return error_of(status)
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and timeout_s is not None:
        return RetriableRemoteStorageError(f"{peer}: no answer within {timeout_s:g} s")
    message = f"{peer}: {details_with_hint(error, peer)}"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        message = f"{peer}: {_NOT_SERVED_THERE} ({error.details()})"
    return error_of(status_pb2.Status(code=error.code().value[0], message=message))


def details_with_hint(error: grpc.RpcError, peer: Peer | str) -> str:
    """Return what gRPC says of a failed call, and what to check if TLS was not agreed on."""
    details = error.details() or ""
    words = next((words for sign, words in _PLAIN_WORDS if sign in details), details)
    return f"{words}; {peer.hint}" if isinstance(peer, Peer) and _no_handshake(details) else words


def _status_of_call(error: grpc.Call) -> status_pb2.Status | None:
    try:
        status: status_pb2.Status | None = rpc_status.from_call(error)
    except (ValueError, DecodeError):
        # The trailing status is malformed, or contradicts the call's own: trust neither.
        return None
    return status


def is_lost(error: grpc.RpcError) -> bool:
    """Return whether the connection or a server that stops ended a call, and no service did.

    A server that stops cancels calls that reach it before its client knows.
    """
    return _ended_as(error, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)


def is_disconnected(error: object) -> bool:
    """Return whether a call had no connection, or lost it."""
    return _ended_as(error, grpc.StatusCode.UNAVAILABLE)


def is_unanswered(error: grpc.RpcError) -> bool:
    """Return whether no service answered a call: it was lost, or its time was over."""
    return is_lost(error) or _ended_as(error, grpc.StatusCode.DEADLINE_EXCEEDED)


def _ended_as(error: object, *codes: grpc.StatusCode) -> bool:
    """Return whether a call ended with one of these codes, which no service of ours gave it."""
    if not isinstance(error, grpc.Call):
        return False
    return error.code() in codes and _status_of_call(error) is None


def was_ended_by_proxy(error: BaseException | None) -> bool:
    """Return whether a call ended as none of our servers ends one: INTERNAL without a reason.

    A proxy answers so when it resets the stream of a request that is too large for it.
    """
    return _ended_as(error, grpc.StatusCode.INTERNAL)


def _no_handshake(details: str) -> bool:
    """Return whether a connection was opened, or may have been, but TLS was not agreed on.

    A server that refuses a client's certificate only closes the connection.
    """
    return details.startswith(_NOT_CONNECTED) and any(sign in details for sign in _NO_HANDSHAKE)


def _name_of(number: int) -> str:
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return names.get(number, str(number))
