"""A call on a channel that its client has closed raises, whether its method was used before."""

import pytest

from services.common.client_security import PLAINTEXT
from services.rpc.client.channel import open_channel


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream", "stream_unary", "stream_stream"])
def test_a_method_that_was_never_called_raises_on_a_closed_channel(kind: str) -> None:
    channel = open_channel("127.0.0.1:1", PLAINTEXT)
    # gRPC registers such a method with its core, which would read memory that `close` has freed.
    method = getattr(channel, kind)("/a.Service/Call", _registered_method=True)
    channel.close()
    with pytest.raises(ValueError, match="closed channel"):
        method(b"")
