"""Open channels: plaintext, or TLS whose files may change while calls run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

import grpc

from services.api.errors import InvalidRequestError
from services.common.client_security import NO_PROXY, ClientSecurity, target_of
from services.rpc.statuses import Peer
from services.rpc.tls import ReloadedTls, TlsFileError, TlsFiles, TlsMaterial

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Limits how far a sender may run ahead of a reader, per stream. By default gRPC measures the
    # connection and allows tens of MiB on a fast one: eight copies to a slow store fill memory.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
)
ChannelOptions: TypeAlias = tuple[tuple[str, int | str], ...]

_CLIENT_OPTIONS: ChannelOptions = (
    *CHANNEL_OPTIONS,
    *NO_PROXY,
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # By default gRPC waits for a second after the first attempt, and up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # All addresses of a target get calls, and a lost connection is opened again without a call.
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
    # A pod that is replaced has another address. By default gRPC asks every 30 s at most.
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
)


def open_channel(target: str, security: ClientSecurity) -> grpc.Channel:
    """Return a channel that connects when first used, and again after a break.

    Calls go to all connected addresses of the target in turn.

    Args:
        target: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT.

    Raises:
        InvalidRequestError: it is no target, or a file of `security` cannot be used; names it.
    """
    has_tls = security.ca is not None
    checked = target_of(target, has_tls=has_tls)
    if not has_tls:
        return grpc.insecure_channel(checked, options=_CLIENT_OPTIONS)
    return cast(grpc.Channel, ReloadingChannel(checked, security))


def peer_of(service: str, channel: grpc.Channel, address: str) -> Peer:
    """Describe the server of a channel that `open_channel` opened."""
    name = f"{service} at {address}"
    opened: object = channel
    if isinstance(opened, ReloadingChannel):
        hint = (
            "check that the server serves TLS here, trusts this client's certificate and has one "
            f"for this host name; files of this client: {opened.security}"
        )
    else:
        hint = "this client speaks plaintext: give it TLS files if the server serves TLS"
    return Peer(name, hint)


def _token_of(content: bytes) -> str:
    token = content.decode("ascii", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError("holds no token")
    return token


def _token_credentials(path: Path) -> grpc.CallCredentials:
    """Return credentials that send the token of a file, also after it was replaced.

    Raises:
        InvalidRequestError: the file holds no token.
    """
    # Only here: clients without a token must not wait for prometheus_client.
    from services.common.reloaded_file import FileError, ReloadedFile  # noqa: PLC0415

    try:
        file = ReloadedFile("token", path, _token_of)
    except FileError as e:
        raise InvalidRequestError(str(e)) from e

    def send(_: object, callback: grpc.AuthMetadataPluginCallback) -> None:
        callback((("authorization", f"Bearer {file.current()}"),), None)

    return grpc.metadata_call_credentials(cast(grpc.AuthMetadataPlugin, send))


MakeMethod: TypeAlias = Callable[[grpc.Channel], Any]


class _Generation:
    """A channel with one content of the files, and the number of calls that it carries."""

    def __init__(self, channel: grpc.Channel, material: TlsMaterial) -> None:
        self.channel = channel
        self.material = material
        self.calls = 0
        self.methods: dict[MakeMethod, Any] = {}


class ReloadingChannel:
    """A grpc.Channel over TLS that continues with new files when they change. Thread-safe.

    New calls use a new channel; the old one is closed when its last call has ended.
    """

    def __init__(self, target: str, security: ClientSecurity) -> None:
        """Read the files.

        Raises:
            InvalidRequestError: a file cannot be used; names it.
        """
        self.security = security
        self._target = target
        try:
            self._tls = ReloadedTls(TlsFiles(security.certificate, security.key, security.ca))
        except TlsFileError as e:
            raise InvalidRequestError(str(e)) from e
        self._token = None if security.token is None else _token_credentials(security.token)
        self._lock = Lock()
        self._draining: list[_Generation] = []
        self._current = self._open(self._tls.material())

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return _Method(self, lambda channel: channel.unary_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return _Stream(self, lambda channel: channel.unary_stream(method, *arguments, **options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return _Method(self, lambda channel: channel.stream_unary(method, *arguments, **options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return _Stream(self, lambda channel: channel.stream_stream(method, *arguments, **options))

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:
        """Subscribe to the connectivity of the present channel; no newer one is followed."""
        self._current.channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        with self._lock:
            for generation in (self._current, *self._draining):
                generation.channel.unsubscribe(callback)

    def close(self) -> None:
        """Close every channel, which cancels its calls."""
        with self._lock:
            generations = [self._current, *self._draining]
            self._draining = []
        for generation in generations:
            generation.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def begin_call(self, make: MakeMethod) -> tuple[_Generation, Any]:
        """Return the method of the newest channel, which stays open until `end_call`."""
        material = self._tls.material()
        drained: list[_Generation] = []
        with self._lock:
            if material is not self._current.material:
                opened = self._open(material)
                self._draining.append(self._current)
                self._current = opened
            current = self._current
            current.calls += 1
            method = current.methods.get(make)
            if method is None:
                method = current.methods[make] = make(current.channel)
            if self._draining:
                drained = [old for old in self._draining if not old.calls]
                self._draining = [old for old in self._draining if old.calls]
        # Not when the last call ends: that is noted in a thread of the channel itself.
        for old in drained:
            old.channel.close()
        return current, method

    def end_call(self, generation: _Generation) -> None:
        with self._lock:
            generation.calls -= 1

    def _open(self, material: TlsMaterial) -> _Generation:
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
        if self._token is not None:
            credentials = grpc.composite_channel_credentials(credentials, self._token)
        channel = grpc.secure_channel(self._target, credentials, options=_CLIENT_OPTIONS)
        return _Generation(channel, material)


class _Method:
    """A method with one response, of whichever channel is the newest when it is called."""

    def __init__(self, channel: ReloadingChannel, make: MakeMethod) -> None:
        self._channel = channel
        self._make = make

    def __call__(self, request: Any, **options: Any) -> Any:
        generation, method = self._channel.begin_call(self._make)
        try:
            return method(request, **options)
        finally:
            self._channel.end_call(generation)

    def future(self, request: Any, **options: Any) -> Any:
        generation, method = self._channel.begin_call(self._make)
        try:
            call = method.future(request, **options)
        except BaseException:
            self._channel.end_call(generation)
            raise
        call.add_done_callback(lambda _: self._channel.end_call(generation))
        return call


class _Stream:
    """A method with a stream of responses, of whichever channel is the newest."""

    def __init__(self, channel: ReloadingChannel, make: MakeMethod) -> None:
        self._channel = channel
        self._make = make

    def __call__(self, request: Any, **options: Any) -> Any:
        generation, method = self._channel.begin_call(self._make)
        end = partial(self._channel.end_call, generation)
        try:
            call = method(request, **options)
        except BaseException:
            end()
            raise
        if not call.add_callback(end):
            end()
        return call
