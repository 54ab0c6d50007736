"""What every refusal must be, whatever was asked."""

from collections.abc import Sequence

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from services.api.errors import every_error_class
from services.rpc.statuses import DOMAIN
from tests.deep.fuzzing.calling import Answer, messages_in, statuses_in
from tests.deep.fuzzing.field_paths import names_a_field, names_a_map_key
from tests.deep.fuzzing.sound_requests import SETTINGS

LONGEST_REFUSAL = 1_000
"""Characters: one line that a person reads."""
NEVER = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}
"""The database is there, and nobody is in a hurry: whatever says so is a fault of RLMM."""
_NOT_THERE_YET = {"BuildRemoteLogAuxStateRequest"}
"""What these ask for may come later; until then they are UNAVAILABLE, as their contract says."""
_STATUS_OF_REASON = {cls.reason: cls.status for cls in every_error_class()}
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


def require_sound_answer(requests: Sequence[Message], answer: Answer) -> None:
    """
    Raises:
        AssertionError: a refusal, of the call or of an item, that is not what it should be.
    """
    items = [item for request in requests for item in messages_in(request)]
    if not answer.is_ok:
        assert answer.status is not None, f"{answer.code}: {answer.said}: not in words of ours"
        # The only header of a stream needs no name.
        headers = items if "header" in requests[0].DESCRIPTOR.fields_by_name else ()
        _require_sound_refusal(answer.status, [*requests, *headers])
    # The refusal of an item names a field of that item.
    for response in answer.responses:
        for status in statuses_in(response):
            if status.code != grpc.StatusCode.OK.value[0]:
                _require_sound_refusal(status, items)


def reason_of(status: status_pb2.Status) -> str:
    """
    Raises:
        AssertionError: it has no ErrorInfo of ours.
    """
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info.reason
    raise AssertionError(f"without ErrorInfo: {status}")


def _require_sound_refusal(status: status_pb2.Status, requests: Sequence[Message]) -> None:
    name, said = _NAMES[status.code], status.message
    may_come = name == "UNAVAILABLE" and requests[0].DESCRIPTOR.name in _NOT_THERE_YET
    assert name not in NEVER or may_come, f"{name}: {said}"
    reason = reason_of(status)
    assert _STATUS_OF_REASON.get(reason) == name, f"{reason} is not {name}: {said}"
    assert said.isprintable(), f"not one line of text: {said!r}"
    assert 0 < len(said) <= LONGEST_REFUSAL, f"{len(said)} characters: {said[:100]}..."
    if name == "INVALID_ARGUMENT":
        assert _names_its_field(said, requests), f"names no field: {said}"


def _names_its_field(said: str, requests: Sequence[Message]) -> bool:
    if any(names_a_field(said, each) or names_a_map_key(said, each) for each in requests):
        return True
    # A setting that is missing beside others is named as those are.
    return said.partition(":")[0] in SETTINGS and any(
        "entries" in each.DESCRIPTOR.fields_by_name for each in requests
    )
