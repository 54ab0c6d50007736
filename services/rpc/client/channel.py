"""Open channels: plaintext, or TLS whose files may change while calls run."""

import time
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import grpc

from services.api.errors import InvalidRequestError
from services.common.addresses import target_of
from services.common.client_security import NO_PROXY, ClientSecurity
from services.rpc.statuses import Peer, is_disconnected
from services.rpc.tls import ReloadedTls, TlsFileError, TlsFiles

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
    # Else all channels of this process to an address share one connection.
    ("grpc.use_local_subchannel_pool", 1),
)

CONNECTIONS = 4
"""The most connections of a channel to each address. Behind an address may be several processes
(docs/adr/0027-processes-behind-one-port.md), and a connection leads to one of them."""


def open_channel(target: str, security: ClientSecurity) -> grpc.Channel:
    """Return a channel that connects when first used, and again after a break.

    Calls go to all connected addresses of the target in turn. Concurrent calls use up to
    CONNECTIONS connections to each; a client that makes one call after the other has one.

    Args:
        target: HOST:PORT, dns:///HOST:PORT or ipv4:IP:PORT,IP:PORT.

    Raises:
        InvalidRequestError: it is no target, or a file of `security` cannot be used; names it.
    """
    checked = target_of(target, has_tls=security.ca is not None)
    return cast(grpc.Channel, SpreadChannel(checked, security))


def peer_of(service: str, channel: grpc.Channel, address: str) -> Peer:
    """Describe the server of a channel that `open_channel` opened."""
    name = f"{service} at {address}"
    opened: object = channel
    if isinstance(opened, SpreadChannel) and opened.security.ca is not None:
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


class _Connection:
    """A channel of gRPC, with one connection to each address, and the number of its calls."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.calls = 0
        self.methods: dict[_Method, Any] = {}


_calls = attrgetter("calls")

REPLACE_INTERVAL_S = 0.1
"""The least age of connections that are replaced; gRPC pauses as long before its second attempt."""


class SpreadChannel:
    """The calls of a grpc.Channel over several connections, with new TLS files when they change.

    A call takes the connection with the fewest calls, and another one if all have some. New calls
    use new connections when the files have changed, or when a call was lost: each connection waits
    by itself before it tries a lost server again, and the next call may need it. An old one is
    closed when its last call has ended. Thread-safe.
    """

    def __init__(self, target: str, security: ClientSecurity) -> None:
        """Read the files.

        Raises:
            InvalidRequestError: a file cannot be used; names it.
        """
        self.security = security
        self._target = target
        self._tls = None
        if security.ca is not None:
            files = TlsFiles(security.certificate, security.key, security.ca)
            try:
                self._tls = ReloadedTls(files)
            except TlsFileError as e:
                raise InvalidRequestError(str(e)) from e
        self._material = None if self._tls is None else self._tls.material()
        self._token = None if security.token is None else _token_file(security.token)
        self._lock = Lock()
        self._draining: list[_Connection] = []
        # The first exists from the beginning: files that gRPC refuses are reported at once.
        self._connections = [self._open()]
        self._opened_s = time.monotonic()
        self._is_closed = False

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", arguments, options)

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", arguments, options)

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", arguments, options)

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", arguments, options)

    def close(self) -> None:
        """Close every connection, which cancels its calls."""
        with self._lock:
            self._is_closed = True
            connections = [*self._connections, *self._draining]
            self._draining = []
        for connection in connections:
            connection.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def begin_call(self, method: "_Method") -> tuple[_Connection, Any]:
        """Return a connection and the method on it; it stays open until `end_call`.

        Raises:
            ValueError: the channel is closed; gRPC's own methods raise it as well.
        """
        drained: list[_Connection] = []
        material = None if self._tls is None else self._tls.material()
        with self._lock:
            if self._is_closed:
                # To make a method of a channel that is closed ends the process.
                raise ValueError("Cannot invoke RPC on closed channel!")
            if material is not self._material:
                self._material = material
                self._replace()
            least = min(self._connections, key=_calls)
            if least.calls and len(self._connections) < CONNECTIONS:
                least = self._open()
                self._connections.append(least)
            least.calls += 1
            of_channel = least.methods.get(method)
            if of_channel is None:
                of_channel = least.methods[method] = method.of(least.channel)
            if self._draining:
                drained = [old for old in self._draining if not old.calls]
                self._draining = [old for old in self._draining if old.calls]
        # Not when the last call ends: that happens in a thread of the channel itself.
        for old in drained:
            old.channel.close()
        return least, of_channel

    def with_token(self, options: dict[str, Any]) -> dict[str, Any]:
        """Add the token to the metadata of a call.

        gRPC's credentials of a call would run Python in threads of its core. They wait for the
        interpreter's lock, which `close` of any channel holds while it waits for such threads.
        """
        if self._token is None:
            return options
        header = ("authorization", f"Bearer {self._token.current()}")
        return {**options, "metadata": (*(options.get("metadata") or ()), header)}

    def end_call(self, connection: _Connection, error: object = None) -> None:
        """Release a connection; `error` is what a call raised, or a stream that has ended."""
        is_lost = error is not None and is_disconnected(error)
        with self._lock:
            connection.calls -= 1
            is_of_age = time.monotonic() - self._opened_s > REPLACE_INTERVAL_S
            if is_lost and is_of_age and connection in self._connections and not self._is_closed:
                self._replace()

    def _replace(self) -> None:
        self._draining += self._connections
        self._connections, self._opened_s = [self._open()], time.monotonic()

    def _open(self) -> _Connection:
        tls = self._material
        if tls is None:
            return _Connection(grpc.insecure_channel(self._target, options=_CLIENT_OPTIONS))
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        return _Connection(grpc.secure_channel(self._target, credentials, options=_CLIENT_OPTIONS))


class _Method:
    """A method of whichever connection is chosen when it is called."""

    def __init__(
        self, channel: SpreadChannel, kind: str, arguments: Any, options: Mapping[str, Any]
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
        connection, method = self._channel.begin_call(self)
        if self._kind.endswith("_stream"):
            return self._begun(connection, method, request, options)
        error = None
        try:
            return method(request, **options)
        except grpc.RpcError as e:
            error = e
            raise
        finally:
            self._channel.end_call(connection, error)

    def future(self, request: Any, **options: Any) -> Any:
        options = self._channel.with_token(options)
        connection, method = self._channel.begin_call(self)
        return self._begun(connection, method.future, request, options)

    def _begun(
        self, connection: _Connection, begin: Any, request: Any, options: Mapping[str, Any]
    ) -> Any:
        end = partial(self._channel.end_call, connection)
        try:
            call = begin(request, **options)
        except BaseException:
            end()
            raise
        if not call.add_callback(lambda: end(call)):
            end(call)
        return call
