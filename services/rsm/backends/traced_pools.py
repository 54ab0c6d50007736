"""Record each request to the store in the trace of the call that makes it.

A span has an attempt and the retries after it, each of which is a span too, and ends with the
headers of the answer. It has no query: that may hold a signature.
"""

from typing import Any

from urllib3 import BaseHTTPResponse

from services.common.tracing import request
from services.rsm.backends.s3_answers import BoundedPool, BoundedTlsPool


def _attributes(host: str, method: str, url: str) -> dict[str, str | int]:
    path = url.partition("?")[0]
    return {"http.request.method": method, "server.address": host, "url.path": path}


class _TracedPool(BoundedPool):
    def urlopen(self, method: str, url: str, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        with request(f"S3 {method}", _attributes(self.host, method, url)):
            return super().urlopen(method, url, *arguments, **options)


class _TracedTlsPool(BoundedTlsPool):
    def urlopen(self, method: str, url: str, *arguments: Any, **options: Any) -> BaseHTTPResponse:
        with request(f"S3 {method}", _attributes(self.host, method, url)):
            return super().urlopen(method, url, *arguments, **options)


TRACED_POOLS = {"http": _TracedPool, "https": _TracedTlsPool}
