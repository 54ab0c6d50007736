package io.sediment.kafka;

import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;

import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteStorageException;
import org.apache.kafka.server.log.remote.storage.RetriableRemoteStorageException;

/**
 * Segments of a list that comes in pages, each fetched when the one before is used up.
 *
 * <p>An iterator can throw unchecked exceptions only. A later page that cannot be had right now is
 * one of Kafka's retriable ones, which its tasks treat as they treat
 * {@link RetriableRemoteStorageException}; any other failure is a {@link KafkaException}.
 */
final class SegmentIterator implements Iterator<RemoteLogSegmentMetadata> {
    private final Pages pages;
    private Iterator<RemoteLogSegmentMetadata> segments;
    private String nextPageToken;

    /**
     * Fetches the first page.
     *
     * @throws RemoteStorageException if that fails
     */
    SegmentIterator(Pages pages) throws RemoteStorageException {
        this.pages = pages;
        turnTo(pages.fetch(""));
    }

    /** Fetches a page by the token of the page before; the first has an empty one. */
    interface Pages {
        Page fetch(String pageToken) throws RemoteStorageException;
    }

    /**
     * One page.
     *
     * @param segments may be empty though a page follows
     * @param nextPageToken empty if no page follows
     */
    record Page(List<RemoteLogSegmentMetadata> segments, String nextPageToken) {
    }

    /** A page cannot be had right now; list again. */
    static final class PageUnavailableException extends RetriableException {
        private static final long serialVersionUID = 1;

        PageUnavailableException(Throwable cause) {
            super(cause.getMessage(), cause);
        }
    }

    @Override
    public boolean hasNext() {
        while (!segments.hasNext() && !nextPageToken.isEmpty()) {
            try {
                turnTo(pages.fetch(nextPageToken));
            } catch (RetriableRemoteStorageException e) {
                throw new PageUnavailableException(e);
            } catch (RemoteStorageException e) {
                throw new KafkaException(e.getMessage(), e);
            }
        }
        return segments.hasNext();
    }

    @Override
    public RemoteLogSegmentMetadata next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        return segments.next();
    }

    private void turnTo(Page page) {
        segments = page.segments().iterator();
        nextPageToken = page.nextPageToken();
    }
}
