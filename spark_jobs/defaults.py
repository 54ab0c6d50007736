"""What a sweep does unless it is told otherwise; imports nothing, for the command line's help."""

MAX_SEGMENTS = 10_000
BATCH_SIZE = 500
RETRY_FOR_S = 30.0
MASTER = "local[*]"
DRIVER_MEMORY = "1g"
REMOVAL_GRACE_MS = 3_600_000
