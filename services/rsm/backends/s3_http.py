"""Sign and send requests to one bucket of an S3 store."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from minio import time
from minio.credentials.credentials import Credentials
from minio.signer import presign_v4, sign_v4_s3
from urllib3 import (
    BaseHTTPResponse,
    HTTPConnectionPool,
    PoolManager,
    ProxyManager,
    Retry,
    make_headers,
)

from services.api.errors import StoreAccessDeniedError
from services.rsm.active_copies import Waiter
from services.rsm.backends.s3_answers import BOUNDED_POOLS
from services.rsm.backends.s3_credentials import StoreCredentials
from services.rsm.backends.s3_responses import code_of, release, require_success
from services.rsm.backends.s3_retry import Repeats, RequestTimeout, error_for, s3_errors

_UNSIGNED = "UNSIGNED-PAYLOAD"

_DENIALS = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""The statuses with which stores refuse credentials: 400 has the code ExpiredToken."""

_BLOCK_BYTES = 256 * 1024
"""Size of the blocks in which a body is sent.

A socket's timeout covers all bytes of one send call. Without blocks a whole part would have to be
sent within the connect timeout.
"""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy to a store; `user_and_password` as user:password, None if it needs none."""

    url: str
    user_and_password: str | None = field(default=None, repr=False)


def http_pool(
    connections: int,
    connect_timeout_ms: int,
    read_timeout_ms: int,
    retries: int,
    waiter: Waiter,
    pools: Mapping[str, type[HTTPConnectionPool]] = BOUNDED_POOLS,
    proxy: Proxy | None = None,
) -> PoolManager:
    """Create a pool of connections, which alone retries its requests.

    A process has one, and one for each location with a proxy.

    A request is retried at most `retries` times, with exponential back-off, while its caller waits:
    if no connection was made, or if its method is GET, HEAD, PUT or DELETE. A POST that begins or
    completes an upload is retried if the store is too busy (429, 503), never if the POST may have
    worked, or deletes: ObjectDeletes retries deletes. `waiter` ends all retries when the service
    stops.
    """
    timeout = RequestTimeout(connect_timeout_ms / 1000, read_timeout_ms / 1000)
    repeats = Repeats(
        total=retries,
        # S3 stores do not redirect; the login page of a proxy would count as a response.
        redirect=False,
        backoff_factor=0.2,
        backoff_jitter=0.2,
        backoff_max=2,
        respect_retry_after_header=False,
        status_forcelist=(429, 500, 502, 503, 504),
        raise_on_status=False,
        waiter=waiter,
    )
    if proxy is None:
        manager = PoolManager(maxsize=connections, timeout=timeout, retries=repeats)
    else:
        manager = ProxyManager(
            proxy.url,
            proxy_headers=make_headers(proxy_basic_auth=proxy.user_and_password),
            maxsize=connections,
            timeout=timeout,
            retries=repeats,
        )
    manager.pool_classes_by_scheme = dict(pools)
    return manager


@dataclass(frozen=True, slots=True)
class S3Target:
    """The bucket of requests, and how they are signed.

    Attributes:
        endpoint: HOST:PORT.
        public_endpoint: URL of the store as clients reach it; empty if RSM's own address serves.
        sign_payload: sign the sha256 of a body. Otherwise only a crc32c protects the body, and an
            intermediary could change both.
        write_headers: of each request that creates an object.
    """

    endpoint: str
    secure: bool
    region: str
    bucket: str
    credentials: StoreCredentials
    sign_payload: bool
    public_endpoint: str = ""
    write_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def public_url(self) -> str:
        """Return the bucket's URL for clients."""
        return f"{self.public_endpoint}/{self.bucket}" if self.public_endpoint else self.url

    @property
    def url(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.endpoint}/{self.bucket}"

    def named(self, key: str) -> str:
        """Return the name of an object, a prefix of keys, or the bucket if it is "", for errors."""
        return f"{key} of bucket {self.bucket!r}" if key else f"bucket {self.bucket!r}"


@dataclass(frozen=True, slots=True)
class _Request:
    """A request without its signature; it may be sent more than once."""

    method: str
    key: str
    query: Mapping[str, str]
    body: bytes | memoryview | None
    headers: Mapping[str, str]
    retries: Retry | None
    preload_content: bool


class SignedRequests:
    """Sends signed requests for one bucket, path style. Raises errors as StorageBackend.

    Attributes:
        retries: of all requests by default.
        post_retries: of a POST: only if the store refused it as too busy, so that it did not work.
        no_retries: send once.
    """

    def __init__(self, http: PoolManager, target: S3Target) -> None:
        # Saves a lookup in the pool manager for each request.
        self._pool = http.connection_from_url(target.url)
        self._bucket_url = urlsplit(target.url)
        # A proxy learns the store from the whole URL; with TLS it passes a connection through.
        is_forwarded = http.proxy is not None and not target.secure
        self._store_url = f"http://{target.endpoint}" if is_forwarded else ""
        self.retries: Retry = http.connection_pool_kw["retries"]
        self.post_retries = self.retries.new(
            allowed_methods=None, status_forcelist=(429, 503), read=False, other=0
        )
        self.no_retries = self.retries.new(total=0)
        self._target = target

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | None = None,
    ) -> BaseHTTPResponse:
        """Send a request as `request` does; raise an error unless it succeeds."""
        response = self.request(method, key, query, body, headers, retries)
        size = f" ({len(body):,} bytes)" if body else ""
        require_success(response, f"{method} {self._target.named(key)}{size}")
        return response

    def request(
        self,
        method: str,
        key: str,
        query: Mapping[str, str] | None = None,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | None = None,
        *,
        preload_content: bool = True,
    ) -> BaseHTTPResponse:
        """Send a request and return the response, whatever its status.

        If the store refuses the credentials, and they have changed, the request is sent once more.

        Args:
            key: of the object; "" for the bucket.
            retries: None for those of the pool.
            preload_content: read the whole body of the response.
        """
        request = _Request(method, key, query or {}, body, headers or {}, retries, preload_content)
        used = self._target.credentials.retrieve()
        response = self._request_once(request, used)
        if not self._is_denied(response, request) or not self._target.credentials.renew(used):
            return response
        release(response)
        return self._request_once(request, self._target.credentials.retrieve())

    def presigned_url(self, key: str, valid_s: int) -> str:
        """Return a URL for clients, with which they read an object; send no request."""
        credentials, bucket_url = self._target.credentials.retrieve(), self._target.public_url
        token = credentials.session_token
        query = urlencode({"X-Amz-Security-Token": token}, quote_via=quote) if token else ""
        return presign_v4(
            method="GET",
            # The signature covers the host: clients may reach the store by another name than RSM.
            url=urlsplit(f"{bucket_url}/{quote(key)}?{query}"),
            region=self._target.region,
            credentials=credentials,
            date=time.utcnow(),
            expires=valid_s,
        ).geturl()

    def _is_denied(self, response: BaseHTTPResponse, request: _Request) -> bool:
        if response.status not in _DENIALS:
            return False
        what = f"{request.method} {self._target.named(request.key)}"
        error = error_for(code_of(response, what), response.status, what)
        return isinstance(error, StoreAccessDeniedError)

    def _request_once(self, request: _Request, credentials: Credentials) -> BaseHTTPResponse:
        method, body = request.method, request.body
        path = self._bucket_url.path + (f"/{quote(request.key)}" if request.key else "")
        arguments = urlencode(sorted(request.query.items()), quote_via=quote)
        url = self._bucket_url._replace(path=path, query=arguments)
        signed = self._sign(method, url, request.headers, body, credentials)
        if body is not None:
            signed["Content-Length"] = str(len(body))
        with s3_errors(f"{method} {self._target.named(request.key)}"):
            return self._pool.urlopen(
                method,
                self._store_url + (f"{path}?{arguments}" if arguments else path),
                redirect=False,
                # Through a proxy the pool's own host is the proxy's.
                assert_same_host=False,
                # urllib3 accepts any sequence of buffers that a socket accepts.
                body=cast(bytes | None, None if body is None else _blocks(body)),
                headers=signed,
                retries=request.retries,
                preload_content=request.preload_content,
            )

    def _sign(
        self,
        method: str,
        url: SplitResult,
        headers: Mapping[str, str],
        body: bytes | memoryview | None,
        credentials: Credentials,
    ) -> dict[str, str]:
        target, date = self._target, time.utcnow()
        plain = target.sign_payload or not body
        sha256 = hashlib.sha256(body or b"").hexdigest() if plain else _UNSIGNED
        named = {"Host": url.netloc, "x-amz-date": time.to_amz_date(date), **headers}
        if credentials.session_token:
            named["x-amz-security-token"] = credentials.session_token
        signed = sign_v4_s3(
            method=method,
            url=url,
            region=target.region,
            headers={**named, "x-amz-content-sha256": sha256},
            credentials=credentials,
            content_sha256=sha256,
            date=date,
        )
        return cast(dict[str, str], signed)


def _blocks(body: bytes | memoryview) -> list[memoryview]:
    view = memoryview(body)
    return [view[at : at + _BLOCK_BYTES] for at in range(0, len(view), _BLOCK_BYTES)]
