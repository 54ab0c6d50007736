package io.sediment.kafka;

import java.io.InputStream;

import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;

/** Opens bytes of a log, wherever they come from. */
interface ChunkSource {
    /**
     * Opens the bytes from one position to another, both inclusive. The reader reads to the end; a
     * stream that ends early fails the read.
     *
     * @throws RemoteStorageException if the first bytes cannot be read
     */
    InputStream open(RemoteLogSegmentMetadata segment, int startPosition, int endPosition)
        throws RemoteStorageException;
}
