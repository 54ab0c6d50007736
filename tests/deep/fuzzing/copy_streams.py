"""Make the streams of CopyLogSegmentData: whole ones, and ones spoilt as streams are."""

from collections.abc import Callable, Sequence

from crc32c import crc32c
from google.protobuf.message import Message
from hypothesis import strategies as st

from services.api.ids import uuid_to_text
from services.rpc.converters.shared import segment_file
from tests.deep.fuzzing.faults import spoilt
from tests.deep.fuzzing.world import World
from tieredstorage.v1 import remote_log_segment_pb2 as segment_pb
from tieredstorage.v1 import remote_storage_manager_pb2 as pb

COPY = pb.CopyLogSegmentDataRequest.DESCRIPTOR
_FAULTS = st.sampled_from([0, 0, 0, 1, 1, 1, 2, 4])
_SIZES = st.sampled_from([0, 1, 40, 5_000])
Stream = list[pb.CopyLogSegmentDataRequest]


def copy_streams(world: World) -> st.SearchStrategy[Sequence[Message]]:
    """Streams of one copy each, sound or spoilt in a few places."""

    @st.composite
    def stream(draw: st.DrawFn) -> Sequence[Message]:
        messages = _sound(draw, world)
        for _ in range(draw(_FAULTS)):
            if draw(st.booleans()) or not messages:
                messages = draw(st.sampled_from(_STREAM_FAULTS))(draw, messages)
            else:
                spoilt_at = draw(st.integers(0, len(messages) - 1))
                draw(spoilt(messages[spoilt_at], world))
        # gRPC accepts a stream without messages, but then the rules have nothing to compare with.
        return messages or [pb.CopyLogSegmentDataRequest()]

    return stream()


def _sound(draw: st.DrawFn, world: World) -> Stream:
    metadata = segment_pb.RemoteLogSegmentMetadata()
    metadata.CopyFrom(draw(st.sampled_from(world.segments)))
    metadata.ClearField("custom_metadata")
    metadata.state = segment_pb.REMOTE_LOG_SEGMENT_STATE_COPY_SEGMENT_STARTED
    if draw(st.integers(0, 3)):
        metadata.remote_log_segment_id.id = uuid_to_text(draw(st.uuids(version=4)))
    contents = {
        number: bytes([number]) * draw(_SIZES)
        for number in sorted(segment_file.to_proto(file) for file in segment_file.members())
    }
    metadata.segment_size_in_bytes = len(contents[pb.SEGMENT_FILE_LOG])
    with_crc = draw(st.booleans())
    headers = [
        pb.SegmentFileHeader(
            file=pb.SegmentFile.ValueType(number),
            size_bytes=len(content),
            crc32c=crc32c(content) if with_crc else None,
        )
        for number, content in contents.items()
    ]
    header = pb.CopyLogSegmentHeader(metadata=metadata, files=headers)
    cut = draw(st.sampled_from([33, 5_000]))
    chunks = [
        pb.SegmentChunk(file=pb.SegmentFile.ValueType(number), data=content[at : at + cut])
        for number, content in contents.items()
        for at in range(0, len(content), cut)
    ]
    return [
        pb.CopyLogSegmentDataRequest(header=header),
        *(pb.CopyLogSegmentDataRequest(chunk=chunk) for chunk in chunks),
    ]


def _without_one(draw: st.DrawFn, messages: Stream) -> Stream:
    at = draw(st.integers(0, max(len(messages) - 1, 0)))
    return messages[:at] + messages[at + 1 :]


def _cut_off(draw: st.DrawFn, messages: Stream) -> Stream:
    return messages[: draw(st.integers(0, len(messages)))]


def _one_twice(draw: st.DrawFn, messages: Stream) -> Stream:
    at = draw(st.integers(0, max(len(messages) - 1, 0)))
    return messages[: at + 1] + messages[at:]


def _in_another_order(draw: st.DrawFn, messages: Stream) -> Stream:
    return draw(st.permutations(messages))


def _too_many_chunks(draw: st.DrawFn, messages: Stream) -> Stream:
    return messages + messages[-1:] * draw(st.sampled_from([10, 1_000]))


def _with_lying_sizes(draw: st.DrawFn, messages: Stream) -> Stream:
    headers = [m.header.files for m in messages if m.HasField("header") and m.header.files]
    if headers:
        file = draw(st.sampled_from(list(headers[0])))
        lies = [-1, 0, file.size_bytes + 1, file.size_bytes - 1, 2**31, 2**62]
        file.size_bytes = draw(st.sampled_from(lies))
    return messages


_STREAM_FAULTS: Sequence[Callable[[st.DrawFn, Stream], Stream]] = (
    _without_one,
    _cut_off,
    _one_twice,
    _in_another_order,
    _too_many_chunks,
    _with_lying_sizes,
)
