"""What the index cache counts."""

from prometheus_client import Counter, Gauge

HITS = Counter(
    "sediment_rlm_index_cache_hits",
    "Indexes of remote segments that were here, by where they were: memory, file.",
    ("layer",),
)
MISSES = Counter(
    "sediment_rlm_index_cache_misses",
    "Indexes of remote segments that were fetched from RSM, or were asked of it in vain.",
)
EVICTIONS = Counter(
    "sediment_rlm_index_cache_evictions",
    "Files of indexes that were removed, by why: size (others needed the room), age "
    "(RLM_REMOTE_LOG_INDEX_FILE_CACHE_TTL_MS), deleted (the segment was deleted by this process).",
    ("reason",),
)
DAMAGED = Counter(
    "sediment_rlm_index_cache_damaged_files",
    "Files of indexes that were damaged, cut off or not this release's; they are fetched anew.",
)
FAILURES = Counter(
    "sediment_rlm_index_cache_failures",
    "What could not be done with the files of indexes, by what it was: open, scan, read, write, "
    "remove. Reads go on without the files.",
    ("operation",),
)
FILES = Gauge("sediment_rlm_index_cache_files", "Files of indexes that are here.")
FILE_BYTES = Gauge(
    "sediment_rlm_index_cache_file_bytes",
    "What they count towards RLM_REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES.",
)
