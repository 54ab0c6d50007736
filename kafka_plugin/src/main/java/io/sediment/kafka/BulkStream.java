package io.sediment.kafka;

import java.io.IOException;
import java.io.InputStream;

/** A stream that is read by arrays; single bytes are read by arrays of one. */
abstract class BulkStream extends InputStream {
    @Override
    public final int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : Byte.toUnsignedInt(one[0]);
    }

    @Override
    public abstract int read(byte[] target, int offset, int length) throws IOException;
}
