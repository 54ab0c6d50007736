"""Open channels: plaintext, or TLS whose files may change while calls run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import grpc

from services.api.errors import InvalidRequestError
from services.common.addresses import target_of
from services.common.client_security import NO_PROXY, ClientSecurity
from services.rpc.statuses import Peer
from services.rpc.tls import ReloadedTls, TlsFileError, TlsFiles, TlsMaterial

if TYPE_CHECKING:
    from services.common.reloaded_file import ReloadedFile

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
    # A pod that is replaced has another address. By default gRPC resolves every 30 s at most.
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
        shows = opened.security.certificate or opened.security.token
        lacks = "" if shows else "this client shows no certificate and no token; "
        hint = f"{lacks}files of this client: {opened.security}"
    else:
        hint = "this client speaks plaintext: give it TLS files if the server serves TLS"
    return Peer(name, hint)


def _token_of(content: bytes) -> str:
    token = content.decode("ascii", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ValueError("holds no token")
    return token


def _token_file(path: Path) -> "ReloadedFile[str]":
    # Only here: clients without a token must not wait for prometheus_client.
    from services.common.reloaded_file import FileError, ReloadedFile  # noqa: PLC0415

    try:
        return ReloadedFile("token", path, _token_of)
    except FileError as e:
        raise InvalidRequestError(str(e)) from e


class _Generation:
    """A channel with one content of the files, and the number of calls that it carries."""

    def __init__(self, channel: grpc.Channel, material: TlsMaterial) -> None:
        self.channel = channel
        self.material = material
        self.calls = 0
        self.methods: dict[_Method, Any] = {}


class ReloadingChannel:
    """The calls of a grpc.Channel over TLS, with new files when they change. Thread-safe.

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
        self._token = None if security.token is None else _token_file(security.token)
        self._lock = Lock()
        self._draining: list[_Generation] = []
        self._current = self._open(self._tls.material())

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", arguments, options)

    def close(self) -> None:
        """Close every channel, which cancels its calls."""
        with self._lock:
            generations = [self._current, *self._draining]
            self._draining = []
        for generation in generations:
            generation.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin_call(self, method: "_Method") -> tuple[_Generation, Any]:
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
            of_channel = current.methods.get(method)
            if of_channel is None:
                of_channel = current.methods[method] = method.of(current.channel)
            if self._draining:
                drained = [old for old in self._draining if not old.calls]
                self._draining = [old for old in self._draining if old.calls]
        # Not when the last call ends: that happens in a thread of the channel itself.
        for old in drained:
            old.channel.close()
        return current, of_channel

    def with_token(self, options: dict[str, Any]) -> dict[str, Any]:
        """Add the token to the metadata of a call.

        gRPC's credentials of a call would run Python in threads of its core. They wait for the
        interpreter's lock, which `close` of any channel holds while it waits for such threads.
        """
        if self._token is None:
            return options
        header = ("authorization", f"Bearer {self._token.current()}")
        return {**options, "metadata": (*(options.get("metadata") or ()), header)}

    def end_call(self, generation: _Generation) -> None:
        with self._lock:
            generation.calls -= 1

    def _open(self, material: TlsMaterial) -> _Generation:
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
        channel = grpc.secure_channel(self._target, credentials, options=_CLIENT_OPTIONS)
        return _Generation(channel, material)


class _Method:
    """A method of whichever channel is the newest when it is called."""

    def __init__(
        self, channel: ReloadingChannel, kind: str, arguments: Any, options: Mapping[str, Any]
    ) -> None:
        """Describe the method: `kind` is the name of the channel's function that makes it."""
        self._channel = channel
        self._kind = kind
        self._arguments = arguments
        self._options = options

    def of(self, channel: grpc.Channel) -> Any:
        return getattr(channel, self._kind)(*self._arguments, **self._options)

    def __call__(self, request: Any, **options: Any) -> Any:
        options = self._channel.with_token(options)
        generation, method = self._channel.begin_call(self)
        if self._kind.endswith("_stream"):
            return self._begun(generation, method, request, options)
        try:
            return method(request, **options)
        finally:
            self._channel.end_call(generation)

    def future(self, request: Any, **options: Any) -> Any:
        options = self._channel.with_token(options)
        generation, method = self._channel.begin_call(self)
        return self._begun(generation, method.future, request, options)

    def _begun(
        self, generation: _Generation, begin: Any, request: Any, options: Mapping[str, Any]
    ) -> Any:
        end = partial(self._channel.end_call, generation)
        try:
            call = begin(request, **options)
        except BaseException:
            end()
            raise
        if not call.add_callback(end):
            end()
        return call
