package io.sediment.kafka;

import io.grpc.netty.GrpcSslContexts;
import io.netty.handler.ssl.ClientAuth;
import io.netty.handler.ssl.SslContext;
import io.netty.handler.ssl.SslContextBuilder;
import io.netty.handler.ssl.SslProvider;
import java.io.IOException;
import java.math.BigInteger;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.GeneralSecurityException;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.KeyStore;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.time.Instant;
import java.util.Base64;
import java.util.Date;
import java.util.concurrent.atomic.AtomicLong;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManagerFactory;
import javax.security.auth.x500.X500Principal;

import org.bouncycastle.asn1.x509.BasicConstraints;
import org.bouncycastle.asn1.x509.Extension;
import org.bouncycastle.asn1.x509.GeneralName;
import org.bouncycastle.asn1.x509.GeneralNames;
import org.bouncycastle.cert.CertIOException;
import org.bouncycastle.cert.jcajce.JcaX509CertificateConverter;
import org.bouncycastle.cert.jcajce.JcaX509v3CertificateBuilder;
import org.bouncycastle.operator.OperatorCreationException;
import org.bouncycastle.operator.jcajce.JcaContentSignerBuilder;

/** An authority of one test, and what it issues. */
final class TestAuthority {
    private static final AtomicLong SERIAL = new AtomicLong(1);
    private static final Duration VALIDITY = Duration.ofHours(1);
    private static final char[] PASSWORD = "changeit".toCharArray();

    private final KeyPair keys = keys("EC", 256);
    private final X500Principal name = new X500Principal("CN=authority " + SERIAL.get());
    private final X509Certificate certificate;

    TestAuthority() {
        certificate = sign(null, keys, null, Instant.now().minus(VALIDITY), VALIDITY);
    }

    /** A certificate and its key. */
    record Issued(KeyPair keys, X509Certificate certificate) {
        /** Writes both as a client has them, in place of those before. */
        void writeTo(Path directory) throws IOException {
            replace(directory.resolve("tls.key"), pem("PRIVATE KEY", key()));
            replace(directory.resolve("tls.crt"), certificatePem(certificate));
        }

        byte[] key() {
            return keys.getPrivate().getEncoded();
        }
    }

    /** Valid now, for 127.0.0.1. */
    Issued issue(String name) {
        return issue(name, "127.0.0.1");
    }

    /** Valid now, for a host of this name or address. */
    Issued issue(String name, String host) {
        return issue(name, keys("EC", 256), Instant.now().minusSeconds(60), host);
    }

    /** Of keys that are given, valid for an hour from a time on. */
    Issued issue(String name, KeyPair pair, Instant start, String address) {
        return new Issued(pair, sign(name, pair, address, start, VALIDITY));
    }

    /** What a server has that asks every client for a certificate of this authority. */
    SslContext server(Issued identity) {
        try {
            SslContextBuilder builder = SslContextBuilder
                .forServer(identity.keys.getPrivate(), identity.certificate)
                .trustManager(certificate)
                .clientAuth(ClientAuth.REQUIRE);
            return GrpcSslContexts.configure(builder, SslProvider.JDK).build();
        } catch (SSLException e) {
            throw new AssertionError(e);
        }
    }

    /** What an HTTPS server has that asks no client for a certificate. */
    SSLContext httpsServer(Issued identity) {
        try {
            KeyStore store = emptyStore();
            store.setKeyEntry("key", identity.keys.getPrivate(), PASSWORD,
                new X509Certificate[] {identity.certificate});
            KeyManagerFactory factory =
                KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
            factory.init(store, PASSWORD);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(factory.getKeyManagers(), null, null);
            return context;
        } catch (GeneralSecurityException | IOException e) {
            throw new AssertionError(e);
        }
    }

    /** What a JVM has whose trust store has this authority alone. */
    SSLContext trusting() {
        try {
            KeyStore store = emptyStore();
            store.setCertificateEntry("authority", certificate);
            TrustManagerFactory factory =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            factory.init(store);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, factory.getTrustManagers(), null);
            return context;
        } catch (GeneralSecurityException | IOException e) {
            throw new AssertionError(e);
        }
    }

    /** Writes the authority's certificate as a client has it, in place of the one before. */
    void writeTo(Path directory) throws IOException {
        replace(directory.resolve("ca.crt"), certificatePem(certificate));
    }

    static KeyPair keys(String algorithm, int bits) {
        try {
            KeyPairGenerator generator = KeyPairGenerator.getInstance(algorithm);
            generator.initialize(bits);
            return generator.generateKeyPair();
        } catch (GeneralSecurityException e) {
            throw new AssertionError(e);
        }
    }

    static String pem(String label, byte[] content) {
        return "-----BEGIN " + label + "-----\n"
            + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(content)
            + "\n-----END " + label + "-----\n";
    }

    static String certificatePem(X509Certificate certificate) {
        try {
            return pem("CERTIFICATE", certificate.getEncoded());
        } catch (GeneralSecurityException e) {
            throw new AssertionError(e);
        }
    }

    static void replace(Path path, String text) throws IOException {
        Path fresh = Files.writeString(path.resolveSibling(path.getFileName() + ".new"), text);
        Files.move(fresh, path, StandardCopyOption.ATOMIC_MOVE);
    }

    private static KeyStore emptyStore() throws GeneralSecurityException, IOException {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(null, PASSWORD);
        return store;
    }

    private X509Certificate sign(
        String subject, KeyPair pair, String address, Instant start, Duration validity
    ) {
        boolean isAuthority = subject == null;
        try {
            var builder = new JcaX509v3CertificateBuilder(
                name,
                BigInteger.valueOf(SERIAL.getAndIncrement()),
                Date.from(start),
                Date.from(start.plus(isAuthority ? validity.multipliedBy(2) : validity)),
                isAuthority ? name : new X500Principal("CN=" + subject),
                pair.getPublic());
            builder.addExtension(
                Extension.basicConstraints, true, new BasicConstraints(isAuthority));
            if (!isAuthority) {
                builder.addExtension(Extension.subjectAlternativeName, false,
                    new GeneralNames(new GeneralName(
                        Character.isDigit(address.charAt(0))
                            ? GeneralName.iPAddress
                            : GeneralName.dNSName,
                        address)));
            }
            var signer = new JcaContentSignerBuilder("SHA256withECDSA").build(keys.getPrivate());
            return new JcaX509CertificateConverter().getCertificate(builder.build(signer));
        } catch (CertIOException | OperatorCreationException | GeneralSecurityException e) {
            throw new AssertionError(e);
        }
    }
}
