"""Serve the page and its JSON over ASGI: GET only, bounded, with strict headers."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.errors import InvalidRequestError, RemoteStorageError, UnauthenticatedError
from services.api.ids import TopicIdPartition, uuid_from_text
from services.api.operations import AnomalyKind
from services.api.segment_batches import MAX_BINS, BinQuery, SegmentAxis
from services.common.addresses import is_loopback
from services.common.release import release
from services.common.reloaded_file import ReloadedFile
from services.console.access import Viewer
from services.console.health import health, list_anomalies, list_sweeps
from services.console.segment_life import segment_life
from services.console.tier import Tier
from services.console.timeline import timeline
from services.console.topics import MAX_ROWS, ORDERS, TopicQuery, list_partitions, list_topics
from services.rpc.server.policy import Policy

STATIC = Path(__file__).parent / "static"

IDENTITY = "sediment.identity"
"""The key of the ASGI scope with the identity of the client certificate; None if it has none."""

MAX_TEXT_LENGTH = 1_024

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

_STATUS_CODES = {
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}

T = TypeVar("T")
_log = logging.getLogger("sediment.console")


def create_app(tier: Tier, policy: ReloadedFile[Policy] | None) -> ASGIApp:
    """Return the application.

    Args:
        policy: of the people at the page; None in plaintext, where everyone sees everything and
            only this machine is served.
    """

    def viewer_of(request: Request) -> Viewer:
        if policy is None:
            return Viewer()
        identity = request.scope.get(IDENTITY)
        if identity is None:
            raise UnauthenticatedError(
                "the browser's certificate names no identity: issue it with a URI or a DNS name as "
                "subject alternative name"
            )
        viewer = Viewer(identity, policy.current())
        viewer.require_any()
        return viewer

    def answers(path: str, answer: Callable[[Viewer, "Parameters"], Mapping[str, Any]]) -> Route:
        def endpoint(request: Request) -> Response:
            viewer = viewer_of(request)
            return JSONResponse(answer(viewer, Parameters(request.query_params)))

        return Route(path, endpoint, methods=["GET"])

    def index(request: Request) -> Response:
        viewer_of(request)
        return FileResponse(STATIC / "index.html")

    routes = [
        Route("/", index, methods=["GET"]),
        answers("/api/about", lambda viewer, _: _about(viewer)),
        answers("/api/topics", lambda viewer, p: list_topics(tier, viewer, p.topic_query())),
        answers(
            "/api/partitions",
            lambda viewer, p: list_partitions(
                tier,
                viewer,
                p.text("topic"),
                uuid_from_text(p.text("topic_id"), "topic_id"),
                offset=p.offset(),
                limit=p.limit(),
            ),
        ),
        answers("/api/timeline", lambda viewer, p: _timeline(tier, viewer, p)),
        answers(
            "/api/segment",
            lambda viewer, p: segment_life(
                tier, viewer, p.partition(), uuid_from_text(p.text("id"), "id")
            ),
        ),
        answers(
            "/api/anomalies",
            lambda viewer, p: list_anomalies(tier, viewer, p.anomaly_kind(), p.text("page", "")),
        ),
        answers("/api/sweeps", lambda viewer, _: list_sweeps(tier, viewer)),
        answers("/api/health", lambda viewer, _: health(tier, viewer)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    handlers: Mapping[Any, Any] = {
        RemoteStorageError: _refused,
        HTTPException: _http_error,
        Exception: _failed,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    return _Guarded(app, only_loopback_names=policy is None)


class Parameters:
    """The parameters of a request's URL, checked."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidRequestError(f"{name}: is missing")
        if len(value) > MAX_TEXT_LENGTH:
            raise InvalidRequestError(f"{name}: has more than {MAX_TEXT_LENGTH} characters")
        return value

    def number(self, name: str, default: int, least: int, most: int) -> int:
        given = self.optional_number(name)
        value = default if given is None else given
        if not least <= value <= most:
            raise InvalidRequestError(f"{name}: must be {least:,} to {most:,}, is {value}")
        return value

    def optional_number(self, name: str) -> int | None:
        text = self.text(name, "")
        if not text:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= 19):
            raise InvalidRequestError(f"{name}: must be a whole number, is {text[:40]!r}")
        return min(int(text), 2**63 - 1)

    def partition(self) -> TopicIdPartition:
        topic_id = uuid_from_text(self.text("topic_id"), "topic_id")
        number = self.number("partition", 0, 0, 2**31 - 1)
        return TopicIdPartition(topic_id, self.text("topic"), number)

    def topic_query(self) -> TopicQuery:
        order = self.text("order", "problems")
        if order not in ORDERS:
            raise InvalidRequestError(f"order: must be one of {', '.join(sorted(ORDERS))}")
        return TopicQuery(
            search=self.text("search", ""),
            order=order,
            offset=self.offset(),
            limit=self.limit(),
        )

    def offset(self) -> int:
        return self.number("offset", 0, 0, 10_000_000)

    def limit(self) -> int:
        return self.number("limit", 100, 1, MAX_ROWS)

    def bin_query(self) -> BinQuery:
        axis = self.text("axis", "offset")
        if axis not in ("offset", "time"):
            raise InvalidRequestError(f"axis: must be offset or time, is {axis[:40]!r}")
        first, last = self.optional_number("from"), self.optional_number("to")
        if first is not None and last is not None and first > last:
            raise InvalidRequestError(f"from: {first} is above to, {last}")
        bins = self.number("bins", 1_000, 1, MAX_BINS)
        return BinQuery(self.partition(), SegmentAxis[axis.upper()], first, last, bins)

    def anomaly_kind(self) -> AnomalyKind | None:
        text = self.text("kind", "")
        try:
            return AnomalyKind(text) if text else None
        except ValueError as e:
            known = ", ".join(kind.value for kind in AnomalyKind)
            raise InvalidRequestError(f"kind: must be one of {known}") from e


def _about(viewer: Viewer) -> Mapping[str, Any]:
    return {"identity": viewer.identity, "version": release(), "has_tls": viewer.policy is not None}


def _timeline(tier: Tier, viewer: Viewer, parameters: Parameters) -> Mapping[str, Any]:
    query = parameters.bin_query()
    viewer.require("RemoteLogMetadataManager/BinRemoteLogSegments", query.topic_id_partition.topic)
    return timeline(tier, query)


def _refused(request: Request, error: RemoteStorageError) -> Response:
    code = _STATUS_CODES.get(error.status, 502)
    return JSONResponse({"error": str(error), "reason": error.reason}, code)


def _http_error(request: Request, error: HTTPException) -> Response:
    texts = {404: "there is no such page", 405: "this console is read-only: only GET is served"}
    text = texts.get(error.status_code, error.detail)
    return JSONResponse({"error": text}, error.status_code, headers=error.headers)


def _failed(request: Request, error: Exception) -> Response:
    """Log an unexpected error; its text may hold what the viewer may not see."""
    _log.error("a request for %s failed", request.url.path, exc_info=error)
    return JSONResponse({"error": "internal error; the console's log has the cause"}, 500)


class _Guarded:
    """Adds the headers to every answer, and refuses names of other hosts in plaintext.

    A page of another site could otherwise read the console: it lets its own name resolve to
    127.0.0.1, and the browser then takes both for one site.
    """

    def __init__(self, app: ASGIApp, *, only_loopback_names: bool) -> None:
        self._app = app
        self._only_loopback_names = only_loopback_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] == "http" and self._only_loopback_names:
            host = Headers(scope=scope).get("host", "")
            if not is_loopback(host):
                text = "open the console by the name localhost or 127.0.0.1"
                await JSONResponse({"error": text}, 421)(scope, receive, send_with_headers)
                return
        await self._app(scope, receive, send_with_headers)
