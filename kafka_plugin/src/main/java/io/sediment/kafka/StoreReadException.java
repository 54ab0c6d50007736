package io.sediment.kafka;

import java.io.IOException;

/** Bytes of a log that cannot be read from the object store, or are not those that were copied. */
final class StoreReadException extends IOException {
    private static final long serialVersionUID = 1L;

    private final Scope scope;

    /** Whose failure it is. */
    enum Scope { STORE, LOG, DAMAGED_LOG }

    /** @param message without the URL */
    StoreReadException(Scope scope, String message) {
        super(message);
        this.scope = scope;
    }

    Scope scope() {
        return scope;
    }
}
