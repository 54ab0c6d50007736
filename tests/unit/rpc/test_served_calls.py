"""What a call knows of its caller."""

import math
from typing import cast

import grpc
import pytest

from services.api.calls import current_call
from services.rpc.server.interceptor import one_call
from services.rpc.server.watchdog import CallGroup, ServedCall


class DeafContext:
    """gRPC's, to which no event of the call's end has come."""

    def __init__(self) -> None:
        self.left_s = 1e17
        self.cancelled = False

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return []

    def peer(self) -> str:
        return "ipv4:1.2.3.4:5"

    def is_active(self) -> bool:
        return True

    def time_remaining(self) -> float:
        return self.left_s

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
def context() -> DeafContext:
    return DeafContext()


@pytest.fixture
def served(context: DeafContext) -> ServedCall:
    return ServedCall(cast(grpc.ServicerContext, context), "")


def test_nobody_waits_after_the_deadline_whatever_grpc_heard(
    context: DeafContext, served: ServedCall
) -> None:
    with one_call("/m", cast(grpc.ServicerContext, context), a_group(), served):
        assert current_call().is_active()
        context.left_s = 0
        assert not current_call().is_active()


def test_what_is_left_is_the_time_to_the_deadline_whoever_set_it(context: DeafContext) -> None:
    served = ServedCall(cast(grpc.ServicerContext, context), "", deadline_s=60)
    with one_call("/m", cast(grpc.ServicerContext, context), a_group(), served):
        assert 0 < current_call().left_s() <= 60
        context.left_s = 5
        assert current_call().left_s() == 5


def test_nobody_waits_for_a_call_that_was_ended(context: DeafContext, served: ServedCall) -> None:
    with one_call("/m", cast(grpc.ServicerContext, context), a_group(), served):
        served.end("the peer has done nothing")
        assert context.cancelled
        assert not current_call().is_active()


def a_group() -> CallGroup:
    return CallGroup(lambda call, waiting: math.inf)
