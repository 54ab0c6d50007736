"""How fast a process may be, all its calls together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates and repeats.

    Attributes:
        upload_rate_bytes_per_s: what all copies take in; 0: as fast as they can.
        fetch_rate_bytes_per_s: what all fetches give out; 0: as fast as they can.
        delete_rate_keys_per_s: of objects, at most; see DeletePace.
        delete_retries: how often keys are deleted again that the store failed on for the moment.
    """

    upload_rate_bytes_per_s: int = 0
    fetch_rate_bytes_per_s: int = 0
    delete_rate_keys_per_s: int = 3500
    delete_retries: int = 0


DEFAULT_LIMITS = Limits()
