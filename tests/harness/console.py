"""Serve the console in this process over real HTTP, and ask it as a browser would."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

from services.common.client_security import PLAINTEXT, ClientSecurity
from services.common.reloaded_file import ReloadedFile
from services.console.app import create_app
from services.console.server import http_server, listening_socket, url_of
from services.console.tier import Tier, connected_tier
from services.rpc.server.policy import Policy
from services.rpc.tls import ReloadedTls
from services.views.endpoints import ServiceAddresses
from tests.harness.eventually import eventually

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Answer:
    """What the console answered."""

    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ServedConsole:
    """A console at a URL; `tier` holds its clients."""

    url: str
    tier: Tier

    def get(self, path: str, **parameters: Any) -> Any:
        """Ask for JSON, which must be there."""
        answer = self.send("GET", path, **parameters)
        assert answer.code == 200, answer.body
        return answer.json

    def send(
        self,
        method: str,
        path: str,
        *,
        host: str | None = None,
        security: ClientSecurity | None = None,
        **parameters: Any,
    ) -> Answer:
        """Send a request on a connection of its own."""
        address = urlsplit(self.url)
        assert address.hostname is not None
        if security is None:
            connection = http.client.HTTPConnection(
                address.hostname, address.port, timeout=_TIMEOUT_S
            )
        else:
            context = ssl.create_default_context(cafile=security.ca)
            if security.certificate is not None:
                context.load_cert_chain(security.certificate, security.key)
            connection = http.client.HTTPSConnection(
                address.hostname, address.port, timeout=_TIMEOUT_S, context=context
            )
        try:
            target = f"{path}?{urlencode(parameters)}" if parameters else path
            connection.request(method, target, headers={} if host is None else {"Host": host})
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, headers, answer.read())
        finally:
            connection.close()


@contextmanager
def serving_console(
    addresses: ServiceAddresses,
    *,
    policy: ReloadedFile[Policy] | None = None,
    tls: ReloadedTls | None = None,
    security: ClientSecurity = PLAINTEXT,
    headers_s: float = 60,
) -> Iterator[ServedConsole]:
    """Serve on a free port of this machine until the block ends."""
    with (
        connected_tier(addresses, lambda _: security) as tier,
        listening_socket("127.0.0.1:0") as bound,
    ):
        server = http_server(create_app(tier, policy), tls, headers_s)
        thread = Thread(target=server.run, args=([bound],), name="console")
        thread.start()
        try:
            eventually(lambda: server.started)
            yield ServedConsole(url_of(bound, has_tls=tls is not None), tier)
        finally:
            server.should_exit = True
            thread.join()
