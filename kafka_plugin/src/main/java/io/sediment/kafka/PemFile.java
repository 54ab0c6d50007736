package io.sediment.kafka;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.PrivateKey;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.InvalidKeySpecException;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * A PEM file that a property names.
 *
 * @param property the property's full name, for messages
 */
record PemFile(String property, Path path) {
    private static final Pattern BLOCK =
        Pattern.compile("-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \\1-----", Pattern.DOTALL);
    private static final String CERTIFICATE = "CERTIFICATE";
    private static final String KEY = "PRIVATE KEY";
    private static final List<String> KEY_ALGORITHMS = List.of("RSA", "EC", "EdDSA");

    private record Block(String label, byte[] content) { }

    /** Returns all certificates in the file's order, at least one. */
    List<X509Certificate> certificates() throws TlsFileException {
        List<X509Certificate> certificates = new ArrayList<>();
        for (Block block : blocks()) {
            if (block.label.equals(CERTIFICATE)) {
                try {
                    certificates.add((X509Certificate) CertificateFactory.getInstance("X.509")
                        .generateCertificate(new ByteArrayInputStream(block.content)));
                } catch (CertificateException e) {
                    throw new TlsFileException(
                        this, "one of its certificates cannot be read: " + e.getMessage());
                }
            }
        }
        if (certificates.isEmpty()) {
            throw new TlsFileException(this, "it has no BEGIN CERTIFICATE; give a PEM file");
        }
        return List.copyOf(certificates);
    }

    /** The unencrypted PKCS #8 key in the file. */
    PrivateKey privateKey() throws TlsFileException {
        Optional<Block> key =
            blocks().stream().filter(block -> block.label.endsWith(KEY)).findFirst();
        if (key.isEmpty()) {
            throw new TlsFileException(this, "it has no BEGIN PRIVATE KEY; give a PEM file");
        }
        if (!key.get().label.equals(KEY)) {
            // The formats before PKCS #8, and encrypted keys: Java reads neither by itself.
            throw new TlsFileException(this, "the key is a BEGIN " + key.get().label + ", not an"
                + " unencrypted BEGIN PRIVATE KEY (PKCS #8); convert it with"
                + " `openssl pkcs8 -topk8 -nocrypt -in " + path + " -out NEW`");
        }
        PKCS8EncodedKeySpec encoded = new PKCS8EncodedKeySpec(key.get().content);
        for (String algorithm : KEY_ALGORITHMS) {
            try {
                return KeyFactory.getInstance(algorithm).generatePrivate(encoded);
            } catch (InvalidKeySpecException e) {
                // It may be one of the others.
            } catch (GeneralSecurityException e) {
                throw new TlsFileException(this, "this Java cannot read keys: " + e.getMessage());
            }
        }
        throw new TlsFileException(
            this, "the key cannot be read as any of " + String.join(", ", KEY_ALGORITHMS));
    }

    /** {@code property=path}. */
    @Override
    public String toString() {
        return property + "=" + path;
    }

    private List<Block> blocks() throws TlsFileException {
        List<Block> blocks = new ArrayList<>();
        Matcher matcher = BLOCK.matcher(text());
        while (matcher.find()) {
            try {
                byte[] content = Base64.getMimeDecoder().decode(matcher.group(2));
                blocks.add(new Block(matcher.group(1), content));
            } catch (IllegalArgumentException e) {
                throw new TlsFileException(
                    this, "what follows BEGIN " + matcher.group(1) + " is not Base64");
            }
        }
        return blocks;
    }

    private String text() throws TlsFileException {
        try {
            return Files.readString(path, StandardCharsets.ISO_8859_1);
        } catch (NoSuchFileException e) {
            throw new TlsFileException(this, "there is no such file");
        } catch (AccessDeniedException e) {
            throw new TlsFileException(this, "the broker's user may not read it");
        } catch (IOException e) {
            throw new TlsFileException(this, "it cannot be read: " + e.getMessage());
        }
    }
}
