package io.sediment.kafka;

import io.grpc.netty.GrpcSslContexts;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslProvider;
import java.security.GeneralSecurityException;
import java.security.PrivateKey;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.X509Certificate;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import javax.net.ssl.SSLException;

/**
 * Holds the three files by which a channel proves who the broker is and which servers it trusts.
 *
 * @param ca the certificates of the authorities that sign the service's certificate
 * @param certificate the broker's certificate, and behind it those that lead to its authority
 * @param key the private key of the broker's certificate
 */
record TlsFiles(PemFile ca, PemFile certificate, PemFile key) {
    /** Reads the files; {@link Content#check} still has to be called. */
    Content read() throws TlsFileException {
        return new Content(this, ca.certificates(), certificate.certificates(), key.privateKey());
    }

    /** What the files had when they were read; equal if they had the same. */
    record Content(
        TlsFiles files,
        List<X509Certificate> authorities,
        List<X509Certificate> chain,
        PrivateKey privateKey
    ) {
        private static final byte[] SAMPLE = new byte[32];

        /** @throws TlsFileException if the key is not the certificate's */
        void check() throws TlsFileException {
            PublicKey publicKey = broker().getPublicKey();
            boolean match;
            try {
                Signature signature = Signature.getInstance(signatureAlgorithm(privateKey));
                signature.initSign(privateKey);
                signature.update(SAMPLE);
                byte[] signed = signature.sign();
                signature.initVerify(publicKey);
                signature.update(SAMPLE);
                match = signature.verify(signed);
            } catch (GeneralSecurityException e) {
                // Among others if one is RSA and the other is not.
                match = false;
            }
            if (!match) {
                throw new TlsFileException(files.key,
                    "the key does not belong to the certificate in " + files.certificate
                        + "; give the two files of one issue");
            }
        }

        /** Says why the service would refuse the certificate at this time, if it would. */
        Optional<String> outdated(Instant now) {
            Instant start = broker().getNotBefore().toInstant();
            Instant end = broker().getNotAfter().toInstant();
            if (now.isAfter(end)) {
                return Optional.of(
                    files.certificate + ": the certificate expired at " + end + "; renew it");
            }
            if (now.isBefore(start)) {
                return Optional.of(files.certificate + ": the certificate is not valid before "
                    + start + "; wait, or set the clock");
            }
            return Optional.empty();
        }

        /** The broker's own certificate. */
        X509Certificate broker() {
            return chain.get(0);
        }

        /** What a channel needs to begin TLS connections with these certificates. */
        SslContext context() throws TlsFileException {
            try {
                SslContextBuilder builder = SslContextBuilder.forClient()
                    .trustManager(authorities)
                    .keyManager(privateKey, chain);
                // Java's own TLS: the jar has no native library, whatever the broker's class path.
                return GrpcSslContexts.configure(builder, SslProvider.JDK).build();
            } catch (SSLException | IllegalArgumentException e) {
                throw new TlsFileException(
                    files.certificate, "this Java cannot use it for TLS: " + e.getMessage());
            }
        }

        private static String signatureAlgorithm(PrivateKey key) {
            return switch (key.getAlgorithm()) {
                case "RSA" -> "SHA256withRSA";
                case "EC" -> "SHA256withECDSA";
                default -> key.getAlgorithm();
            };
        }
    }
}
