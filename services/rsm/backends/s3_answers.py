"""Bound the answers of a store that urllib3 reads whole, for RSM's requests and the SDK's alike."""

from http.client import HTTPResponse

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""The largest are pages of 1,000 keys of 1,024 bytes; each byte takes up to 5 in XML."""


class UnusableAnswerError(HTTPError):
    """Raised if an answer is none of a store; urllib3 does not retry it. Internal to RSM."""


class _BoundedResponse(HTTPResponse):
    """A response that refuses to be read whole if it is too large, or if it would become so.

    White space before an XML declaration is dropped: S3 sends it while it completes an upload, so
    that the connection stays, and a parser refuses it.
    """

    def read(self, amt: int | None = None) -> bytes:
        """Read a part, or all.

        Raises:
            UnusableAnswerError: all is over MAX_ANSWER_BYTES, compressed, or declares XML entities,
                of which a few bytes stand for gigabytes.
        """
        if amt is not None:
            return super().read(amt)
        content = self._read_all()
        if content and self.headers.get("content-encoding", "identity") != "identity":
            raise UnusableAnswerError("it is compressed, which RSM did not ask for")
        if b"<!ENTITY" in content:
            raise UnusableAnswerError("it declares XML entities")
        unpadded = content.lstrip(b"\t\n\r ")
        return unpadded if unpadded.startswith(b"<?xml") else content

    def _read_all(self) -> bytes:
        if self.length is not None:
            if self.length > MAX_ANSWER_BYTES:
                raise _too_large()
            return super().read()
        content = super().read(MAX_ANSWER_BYTES + 1)
        if len(content) > MAX_ANSWER_BYTES:
            raise _too_large()
        # Without a length, only an empty read ends the response.
        if not self.isclosed():
            super().read(1)
        return content


def _too_large() -> UnusableAnswerError:
    return UnusableAnswerError(f"it has over {MAX_ANSWER_BYTES} bytes")


class _Connection(HTTPConnection):
    response_class = _BoundedResponse


class _TlsConnection(HTTPSConnection):
    response_class = _BoundedResponse


class BoundedPool(HTTPConnectionPool):
    """Connections to one host, whose responses are bounded if they are read without a size."""

    ConnectionCls = _Connection


class BoundedTlsPool(HTTPSConnectionPool):
    """As BoundedPool, with TLS."""

    ConnectionCls = _TlsConnection


BOUNDED_POOLS = {"http": BoundedPool, "https": BoundedTlsPool}
