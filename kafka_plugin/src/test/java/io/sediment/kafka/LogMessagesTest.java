package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import io.grpc.Detachable;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.sediment.tieredstorage.v1.FetchLogSegmentResponse;
import java.io.ByteArrayInputStream;
import java.io.InputStream;
import java.util.Random;

import org.junit.jupiter.api.Test;

class LogMessagesTest {
    private static final byte[] DATA = new byte[300];

    static {
        new Random(1).nextBytes(DATA);
    }

    /** A message as gRPC hands it over, in memory that somebody has to give back. */
    private static final class Arrived extends ByteArrayInputStream implements Detachable {
        private boolean isTaken;
        private boolean isClosed;

        Arrived(byte[] message) {
            super(message);
        }

        @Override
        public InputStream detach() {
            isTaken = true;
            return this;
        }

        @Override
        public void close() {
            isClosed = true;
        }
    }

    @Test
    void dataIsReadFromTheMemoryInWhichItArrived() throws Exception {
        Arrived message = new Arrived(message(DATA).toByteArray());

        InputStream data = LogMessages.METHOD.parseResponse(message);

        assertTrue(message.isTaken && !message.isClosed);
        assertEquals(DATA.length, data.available());
        assertArrayEquals(DATA, data.readAllBytes());
        data.close();
        assertTrue(message.isClosed);
    }

    @Test
    void messageInSomeOtherFormIsReadByProtobuf() throws Exception {
        byte[] plain = message(DATA).toByteArray();
        byte[] ofALaterRelease = message(DATA).toBuilder()
            .setUnknownFields(UnknownFieldSet.newBuilder()
                .addField(2, UnknownFieldSet.Field.newBuilder().addVarint(1).build()).build())
            .build().toByteArray();
        byte[] inTwoParts = ByteString.copyFrom(message(new byte[] {7}).toByteArray())
            .concat(ByteString.copyFrom(plain)).toByteArray();

        assertArrayEquals(DATA, read(new ByteArrayInputStream(plain)));
        for (byte[] message : new byte[][] {ofALaterRelease, inTwoParts}) {
            Arrived arrived = new Arrived(message);
            assertArrayEquals(DATA, read(arrived));
            assertTrue(arrived.isClosed);
        }
        assertArrayEquals(new byte[0], read(new Arrived(new byte[0])));
    }

    @Test
    void brokenMessageFailsTheCallAndIsClosed() {
        byte[] whole = message(DATA).toByteArray();
        byte[] short1 = java.util.Arrays.copyOf(whole, whole.length - 1);
        byte[] endlessLength = {10, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

        for (byte[] broken : new byte[][] {short1, {10}, {10, -1}, {0, 0}, endlessLength}) {
            Arrived message = new Arrived(broken);
            StatusRuntimeException failure = assertThrows(StatusRuntimeException.class,
                () -> LogMessages.METHOD.parseResponse(message));
            assertEquals(Status.Code.INTERNAL, failure.getStatus().getCode());
            assertTrue(message.isClosed);
        }
    }

    private static byte[] read(InputStream message) throws Exception {
        try (InputStream data = LogMessages.METHOD.parseResponse(message)) {
            return data.readAllBytes();
        }
    }

    private static FetchLogSegmentResponse message(byte[] data) {
        return FetchLogSegmentResponse.newBuilder().setData(ByteString.copyFrom(data)).build();
    }
}
