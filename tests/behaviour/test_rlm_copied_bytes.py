"""RLM copies each byte that it reads from the tier once, into a message or an answer."""

from typing import Any, cast

from services.api.remote_log_manager import FetchPartition, FetchRequest
from services.rlm.fetch.reads import ReadLimits
from services.rlm.manager import RlmLimits
from services.rlm.servicer import RemoteLogManagerServicer
from services.rpc.converters.log import fetch_request_to_proto
from tests.harness.doors import answered, connected_socket, fetch_of, framed, serving_consumers
from tests.harness.published import growth
from tests.harness.ship_stack import EVERYTHING, Stack
from tests.unit.rlm.kafka_bytes import NAME, batch, three_segments

PLACES = ("message", "answer", "joined")
FRAME_BYTES = 256
"""More than the frame of an answer has besides its records."""


def test_each_byte_is_copied_once_into_a_message_or_an_answer(stack: Stack) -> None:
    three_segments(stack.log_dir)
    stack.ship()
    rlm = stack.tier_reader(limits=RlmLimits(read=ReadLimits(wait_s=60.0)))
    copied = growth(*(f'sediment_bytes_copied_total{{place="{place}"}}' for place in PLACES))
    request = FetchRequest((FetchPartition(NAME, 0, EVERYTHING),), EVERYTHING)
    messages = list(
        RemoteLogManagerServicer(rlm).fetch_parts(fetch_request_to_proto(request), cast(Any, None))
    )
    delivered = sum(len(batch(offset, 5)) for offset in (0, 5, 10, 15))
    assert sum(map(len, messages)) >= delivered
    assert copied() == [delivered, 0, 0]

    with serving_consumers(rlm) as address, connected_socket(address) as client:
        client.sendall(framed(fetch_of(NAME.topic_id, 0, max_wait_ms=60_000)))
        assert batch(0, 5) in answered(client)
    message, answer, joined = copied()
    assert (message, joined) == (delivered, 0)
    assert len(batch(0, 5)) <= answer <= len(batch(0, 5)) + FRAME_BYTES
