"""The word that a stream has been taken up, where no answer has said so within a second."""

from typing import cast

import grpc
import pytest

from services.rpc.server.watchdog import ServedCall


class Context:
    """Counts how often the initial metadata were sent; `refuses` them with this."""

    def __init__(self, refuses: Exception | None = None) -> None:
        self.sent = 0
        self.refuses = refuses

    def send_initial_metadata(self, metadata: object) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent += 1


def a_call(context: Context, *, told_late: bool = True) -> ServedCall:
    call = ServedCall(cast(grpc.ServicerContext, context), "ipv4:127.0.0.1:1")
    if told_late:
        call.tell_if_it_takes_long()
    return call


def test_a_call_is_told_once_and_after_a_second() -> None:
    context = Context()
    call = a_call(context)
    for seconds in (0.0, 1.0, 1.1, 2.0):
        call.tell(call.started + seconds)
    assert context.sent == 1


def test_a_call_that_has_its_status_is_not_told() -> None:
    context = Context()
    call = a_call(context)
    call.tell_no_more()
    call.tell(call.started + 5)
    assert context.sent == 0


def test_a_call_that_tells_by_itself_is_not_told() -> None:
    context = Context()
    call = a_call(context, told_late=False)
    call.tell(call.started + 5)
    assert context.sent == 0


@pytest.mark.parametrize(
    "error", [ValueError("Initial metadata no longer allowed!"), grpc.RpcError()]
)
def test_a_call_that_was_answered_or_left_meanwhile_is_no_error(error: Exception) -> None:
    call = a_call(Context(refuses=error))
    call.tell(call.started + 5)
