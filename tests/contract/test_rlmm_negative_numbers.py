"""Test that each invalid number of each request is refused with its exact path."""

from collections.abc import Iterator
from typing import Final

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from tests.contract.sound_rlmm_requests import RPCS, rlmm_of_sound_requests, sound_requests
from tests.deep.fuzzing.calling import METHODS, call

pytestmark = pytest.mark.deep

_INTEGERS: Final = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_ANSWERED_ONLY: Final = {"first_seen_ms", "last_seen_ms", "times_seen", "set_at_ms"}
"""Numbers of an anomaly and of a hold that RLMM fills in, and ignores in requests."""


@pytest.fixture(scope="module")
def channel(rlmm_database_url: str) -> Iterator[grpc.Channel]:
    with rlmm_of_sound_requests(rlmm_database_url) as opened:
        yield opened


def numbers_in(message: Message, path: str = "") -> Iterator[tuple[str, Message, str]]:
    """Yield each number of the message and its parts: its path, its containing message, its
    name.
    """
    for field in message.DESCRIPTOR.fields:
        value, here = getattr(message, field.name), f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None and field.is_repeated:
            for index, item in enumerate(value):
                yield from numbers_in(item, f"{here}[{index}].")
        elif field.message_type is not None and message.HasField(field.name):
            yield from numbers_in(value, f"{here}.")
        elif (
            field.name not in _ANSWERED_ONLY
            and field.cpp_type in _INTEGERS
            and (not field.has_presence or message.HasField(field.name))
        ):
            yield here, message, field.name


def test_every_rpc_that_takes_a_number_is_here() -> None:
    takes = {each.name for each in METHODS["rlmm"] if takes_a_number(each.input_type)}
    assert takes == set(sound_requests())


def takes_a_number(message_type: Descriptor) -> bool:
    return any(
        field.cpp_type in _INTEGERS
        or (field.message_type is not None and takes_a_number(field.message_type))
        for field in message_type.fields
    )


@pytest.mark.parametrize("name", sound_requests())
def test_requests_are_valid_before_a_number_is_changed(channel: grpc.Channel, name: str) -> None:
    answer = call(channel, RPCS[name], [sound_requests()[name]])
    assert answer.is_ok or answer.code is grpc.StatusCode.ABORTED, answer.said


NUMBERS = [
    (name, path) for name, request in sound_requests().items() for path, *_ in numbers_in(request)
]


@pytest.mark.parametrize(("name", "path"), NUMBERS, ids=[" ".join(each) for each in NUMBERS])
def test_a_negative_number_is_refused_by_its_path(
    channel: grpc.Channel, name: str, path: str
) -> None:
    """Uses -2, because -1 means "unknown" for some numbers."""
    request = sound_requests()[name]
    places = {found: (message, field) for found, message, field in numbers_in(request)}
    setattr(*places[path], -2)
    answer = call(channel, RPCS[name], [request])
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.said.startswith(f"{path}: ")
