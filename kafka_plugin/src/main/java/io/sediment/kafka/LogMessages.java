package io.sediment.kafka;

import com.google.protobuf.CodedInputStream;
import com.google.protobuf.WireFormat;
import io.grpc.Detachable;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.sediment.tieredstorage.v1.FetchLogSegmentRequest;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import io.sediment.tieredstorage.v1.RemoteStorageManagerGrpc;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.SequenceInputStream;

/**
 * Reads the data of FetchLogSegment's messages from the memory in which they arrived. Protobuf would
 * copy it twice, into arrays so large that G1 gives them regions of their own. That memory is not on
 * the heap: the taker of a message closes it.
 */
final class LogMessages implements MethodDescriptor.Marshaller<InputStream> {
    /** FetchLogSegment; an answer is a stream of its data. */
    static final MethodDescriptor<FetchLogSegmentRequest, InputStream> METHOD =
        RemoteStorageManagerGrpc.getFetchLogSegmentMethod().toBuilder(
            RemoteStorageManagerGrpc.getFetchLogSegmentMethod().getRequestMarshaller(),
            new LogMessages()).build();

    private static final int DATA_TAG =
        FetchLogSegmentResponse.DATA_FIELD_NUMBER << 3 | WireFormat.WIRETYPE_LENGTH_DELIMITED;
    // A tag of one byte, and the longest length.
    private static final int MAX_HEAD_BYTES = 6;
    private static final int MORE = 0x80;

    private LogMessages() {
    }

    @Override
    public InputStream stream(InputStream data) {
        throw new UnsupportedOperationException("the plugin sends no message of FetchLogSegment");
    }

    @Override
    public InputStream parse(InputStream message) {
        // gRPC closes its own stream when this returns.
        InputStream own = message instanceof Detachable its ? its.detach() : message;
        try {
            return dataOf(own);
        } catch (IOException e) {
            close(own);
            throw Status.INTERNAL.withDescription("not a message of FetchLogSegment")
                .withCause(e).asRuntimeException();
        }
    }

    /** Returns what is left of a message that has only data; else the data as protobuf finds it. */
    private static InputStream dataOf(InputStream message) throws IOException {
        byte[] head = readHead(message);
        CodedInputStream fields = CodedInputStream.newInstance(head);
        if (message instanceof Detachable && fields.readTag() == DATA_TAG
            && fields.readRawVarint32() == message.available()) {
            return message;
        }
        try (InputStream whole = new SequenceInputStream(new ByteArrayInputStream(head), message)) {
            return FetchLogSegmentResponse.parseFrom(whole).getData().newInput();
        }
    }

    /** Reads a tag and the number behind it. */
    private static byte[] readHead(InputStream message) throws IOException {
        ByteArrayOutputStream head = new ByteArrayOutputStream(MAX_HEAD_BYTES);
        boolean hasMore = true;
        while (hasMore && head.size() < MAX_HEAD_BYTES) {
            int next = message.read();
            hasMore = next >= 0 && (head.size() == 0 || (next & MORE) != 0);
            if (next >= 0) {
                head.write(next);
            }
        }
        return head.toByteArray();
    }

    /** Closes a stream of bytes in memory, which has nothing to fail at. */
    static void close(InputStream message) {
        try {
            message.close();
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
