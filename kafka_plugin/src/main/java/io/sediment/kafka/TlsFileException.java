package io.sediment.kafka;

/** A TLS file cannot be used; the message names its property, its path and the cause. */
final class TlsFileException extends Exception {
    private static final long serialVersionUID = 1L;

    TlsFileException(PemFile file, String problem) {
        super(file + ": " + problem);
    }
}
