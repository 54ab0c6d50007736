"""What every part of the client calls."""

import grpc

from tieredstorage.v1 import remote_log_metadata_manager_pb2_grpc as pb_grpc

BULK_TIMEOUT_S = 300.0
"""Of a batch, and of the wait for the next message of a stream: a sweep may take its time."""


class CallsRlmm:
    """A part of the client; thread-safe."""

    def __init__(self, channel: grpc.Channel, peer: str) -> None:
        self._stub = pb_grpc.RemoteLogMetadataManagerStub(channel)
        self._peer = f"rlmm at {peer}"
