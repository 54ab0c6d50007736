"""Channel and server options that both ends must agree on."""

import grpc

REQUEST_ID_KEY = "x-request-id"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # How far a sender may run ahead of a reader, per stream. By default gRPC measures the
    # connection and allows tens of MiB on a fast one: eight copies to a slow store fill memory.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", CHUNK_BYTES),
)


def open_channel(address: str) -> grpc.Channel:
    """Return a channel to HOST:PORT that connects when first used, and again when it breaks."""
    return grpc.insecure_channel(
        address,
        options=[
            *CHANNEL_OPTIONS,
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            # By default gRPC waits up to two minutes between attempts.
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ],
    )
