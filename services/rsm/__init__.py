"""RSM, the remote storage manager: keeps the bytes of segments in an object store."""
