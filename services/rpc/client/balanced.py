"""Spread the calls of a client over several endpoints of a service."""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition
from types import TracebackType
from typing import Any, Self

import grpc

CONNECT_TIMEOUT_S = 5.0
"""The longest that a call waits for a connection to any endpoint."""

_READY = grpc.ChannelConnectivity.READY
_FAILED = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


class BalancedChannel:
    """A grpc.Channel over a channel for each endpoint. Thread-safe.

    Calls go to the connected endpoints in turn. So an endpoint that stops, or has a wrong address,
    gets none. Each endpoint has a channel of its own, because TLS checks the certificate for the
    host name of the channel.
    """

    def __init__(self, channels: Sequence[grpc.Channel]) -> None:
        """Connect all channels."""
        self.channels = channels
        self._states = [grpc.ChannelConnectivity.IDLE] * len(channels)
        self._changed = Condition()
        self._turn = 0
        self._subscribers: list[Callable[[grpc.ChannelConnectivity], None]] = []
        for number, channel in enumerate(channels):
            channel.subscribe(partial(self._note, number), try_to_connect=True)

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, [c.unary_unary(*arguments, **options) for c in self.channels])

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, [c.unary_stream(*arguments, **options) for c in self.channels])

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, [c.stream_unary(*arguments, **options) for c in self.channels])

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, [c.stream_stream(*arguments, **options) for c in self.channels])

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Report READY to the callback while any endpoint is connected; all connect anyway."""
        with self._changed:
            self._subscribers.append(callback)
            state = self._state()
        callback(state)

    def unsubscribe(self, callback: Any) -> None:
        with self._changed:
            self._subscribers.remove(callback)

    def connected(self) -> list[int]:
        """Return the numbers of the connected endpoints."""
        with self._changed:
            return self._connected()

    def next_endpoint(self) -> int:
        """Return the number of the next connected endpoint; of any if none is connected.

        Waits while none is connected and some may be soon.
        """
        with self._changed:
            self._changed.wait_for(self._is_decided, CONNECT_TIMEOUT_S)
            usable = self._connected() or range(len(self.channels))
            self._turn += 1
            return usable[self._turn % len(usable)]

    def close(self) -> None:
        """Close every channel, which cancels its calls."""
        for channel in self.channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _connected(self) -> list[int]:
        return [number for number, state in enumerate(self._states) if state is _READY]

    def _is_decided(self) -> bool:
        return _READY in self._states or all(state in _FAILED for state in self._states)

    def _state(self) -> grpc.ChannelConnectivity:
        if _READY in self._states:
            return _READY
        if self._is_decided():
            return grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return grpc.ChannelConnectivity.CONNECTING

    def _note(self, number: int, state: grpc.ChannelConnectivity) -> None:
        with self._changed:
            self._states[number] = state
            self._changed.notify_all()
            subscribers, common = list(self._subscribers), self._state()
        for callback in subscribers:
            callback(common)


class _Method:
    """A method of whichever endpoint has the next turn."""

    def __init__(self, channel: BalancedChannel, methods: Sequence[Callable[..., Any]]) -> None:
        self._channel = channel
        self._methods = methods

    def __call__(self, request: Any, **options: Any) -> Any:
        return self._methods[self._channel.next_endpoint()](request, **options)

    def future(self, request: Any, **options: Any) -> Any:
        method: Any = self._methods[self._channel.next_endpoint()]
        return method.future(request, **options)
