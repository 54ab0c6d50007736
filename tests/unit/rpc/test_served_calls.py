"""Test a call's knowledge of its client."""

from collections.abc import Iterator
from typing import cast

import grpc
import pytest

from services.api.calls import current_call
from services.rpc.server.admission import AdmissionQueue, ServedCall
from services.rpc.server.interceptor import one_call


class DeafContext:
    """A context that gRPC has not notified of the end of its call."""

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
def served(context: DeafContext) -> Iterator[ServedCall]:
    queue = AdmissionQueue("unary", 1, 0, idle_timeout_s=60, default_deadline_s=60)
    with queue.pool, one_call("/m", cast(grpc.ServicerContext, context), queue) as served:
        yield served


@pytest.mark.usefixtures("served")
def test_call_is_inactive_after_its_deadline_even_before_grpc_reacts(context: DeafContext) -> None:
    assert current_call().is_active()
    context.left_s = 0
    assert not current_call().is_active()


@pytest.mark.usefixtures("served")
def test_the_time_left_is_up_to_the_earlier_of_both_deadlines(context: DeafContext) -> None:
    assert 0 < current_call().left_s() <= 60
    context.left_s = 5
    assert current_call().left_s() == 5


def test_cancelled_call_is_inactive(context: DeafContext, served: ServedCall) -> None:
    served.cancel("the peer was idle")
    assert context.cancelled
    assert not current_call().is_active()
