"""Count the bytes that Sediment's own code copies from one buffer into another."""

from prometheus_client import Counter

BYTES_COPIED = Counter(
    "sediment_bytes_copied",
    "Bytes that this process's own code copied from one buffer into another, by place: message "
    "(into a message that is to be sent), part_buffer (of RSM, from a message that has arrived), "
    "answer (of RLM, to a consumer of Kafka), joined (of RLM, what arrived in several messages). "
    "The copies that gRPC, TLS and the system make are not counted.",
    ["place"],
)
