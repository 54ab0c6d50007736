package io.sediment.kafka;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/**
 * Parses the settings of both plugins. The broker strips its prefix from the keys; this class adds
 * it again, so that every message names the property that the operator wrote.
 */
abstract class ServiceConfig extends AbstractConfig {
    static final String ENDPOINT = "endpoint";
    private static final String REQUEST_TIMEOUT_MS = "request.timeout.ms";
    private static final int DEFAULT_REQUEST_TIMEOUT_MS = 30_000;
    private static final String SECURITY_PROTOCOL = "security.protocol";
    private static final String PLAINTEXT = "PLAINTEXT";
    private static final String SSL = "SSL";
    private static final String SSL_CA_FILE = "ssl.ca.file";
    private static final String SSL_CERTIFICATE_FILE = "ssl.certificate.file";
    private static final String SSL_KEY_FILE = "ssl.key.file";
    private static final List<String> SSL_FILES =
        List.of(SSL_CA_FILE, SSL_CERTIFICATE_FILE, SSL_KEY_FILE);
    private static final ConfigDef.Validator FILE_NAME = ConfigDef.LambdaValidator.with(
        ServiceConfig::requireFileName, () -> "the name of a file");
    // The broker sets these, and Strimzi sets those of Kafka's own metadata manager for every plugin.
    private static final List<String> OF_THE_BROKER =
        List.of("node.id", "broker.id", "cluster.id", "log.dir");
    private static final String OF_KAFKAS_MANAGER = "remote.log.metadata.";

    private final String prefix;
    private final String broker;

    /** @throws ConfigException naming the property at fault in full, prefix included */
    ServiceConfig(ConfigDef definition, String prefix, Map<String, ?> configs) {
        super(definition, withPrefix(prefix, configs));
        this.prefix = prefix;
        broker = Stream.of("node.id", "broker.id")
            .map(configs::get)
            .filter(Objects::nonNull)
            .findFirst()
            .map(String::valueOf)
            .orElse("-1");
        requireKnown(definition, prefix, configs.keySet());
        requireProtocolAndItsFiles();
    }

    static ConfigDef definition(String prefix, String service) {
        return new ConfigDef()
            .define(
                prefix + ENDPOINT, ConfigDef.Type.STRING, ConfigDef.NO_DEFAULT_VALUE,
                ConfigDef.LambdaValidator.with(
                    ServiceConfig::requireTarget,
                    () -> "host:port, dns:///host:port or ipv4:address:port,address:port"),
                ConfigDef.Importance.HIGH,
                "Where " + service + " listens: host:port, an IPv6 address in brackets, or another"
                    + " target of gRPC.")
            .define(prefix + SECURITY_PROTOCOL, ConfigDef.Type.STRING, null, ConfigDef.Importance.HIGH,
                "Required. SSL: mutual TLS with three files. PLAINTEXT: no encryption, no identity.")
            .define(prefix + SSL_CA_FILE, ConfigDef.Type.STRING, null, FILE_NAME,
                ConfigDef.Importance.HIGH,
                "PEM file with the authorities that sign the certificate of " + service + ".")
            .define(prefix + SSL_CERTIFICATE_FILE, ConfigDef.Type.STRING, null, FILE_NAME,
                ConfigDef.Importance.HIGH,
                "PEM file with the broker's certificate, then those of its intermediate "
                    + "authorities.")
            .define(prefix + SSL_KEY_FILE, ConfigDef.Type.STRING, null, FILE_NAME,
                ConfigDef.Importance.HIGH,
                "PEM file with the private key of that certificate, PKCS #8, not encrypted.")
            .define(prefix + REQUEST_TIMEOUT_MS, ConfigDef.Type.INT, DEFAULT_REQUEST_TIMEOUT_MS,
                ConfigDef.Range.atLeast(1), ConfigDef.Importance.LOW,
                "How long a call that is not a stream may take, its retries included.");
    }

    /** Returns the broker's id, for names in JMX; -1 if the broker did not set it. */
    String broker() {
        return broker;
    }

    /** Returns where the service listens, as gRPC reads it. */
    String target() {
        return getString(prefix + ENDPOINT);
    }

    /** Names the property that chooses between TLS and plaintext, for messages. */
    String securityProtocolProperty() {
        return prefix + SECURITY_PROTOCOL;
    }

    /** Returns the files for mutual TLS; empty if the operator chose plaintext. */
    Optional<TlsFiles> tlsFiles() {
        return getString(prefix + SECURITY_PROTOCOL).equals(PLAINTEXT)
            ? Optional.empty()
            : Optional.of(new TlsFiles(
                pemFile(SSL_CA_FILE), pemFile(SSL_CERTIFICATE_FILE), pemFile(SSL_KEY_FILE)));
    }

    /** Returns how long a call that is not a stream may take, its retries included. */
    int requestTimeoutMs() {
        return getInt(prefix + REQUEST_TIMEOUT_MS);
    }

    /** Refuses without the value, which the broker would log: it may be a key. */
    private static void requireFileName(String name, Object value) {
        String text = String.valueOf(value);
        if (text.contains("-----BEGIN") || text.lines().count() > 1) {
            throw new ConfigException(name + " must be the name of a PEM file, not its content");
        }
    }

    private static Map<String, Object> withPrefix(String prefix, Map<String, ?> configs) {
        return configs.entrySet().stream()
            .filter(entry -> entry.getValue() != null)
            .collect(Collectors.toMap(entry -> prefix + entry.getKey(), Map.Entry::getValue));
    }

    private PemFile pemFile(String name) {
        return new PemFile(prefix + name, Path.of(getString(prefix + name)));
    }

    private void requireProtocolAndItsFiles() {
        String property = securityProtocolProperty();
        String protocol = getString(property);
        if (!List.of(SSL, PLAINTEXT).contains(String.valueOf(protocol))) {
            String files = SSL_FILES.stream()
                .map(file -> prefix + file)
                .collect(Collectors.joining(", "));
            throw new ConfigException(property
                + (protocol == null ? " is missing" : "=" + protocol + " is not supported")
                + ": set SSL, with " + files + "; or set PLAINTEXT, which lets anyone on the"
                + " network read and delete the data in the tier");
        }
        boolean needed = protocol.equals(SSL);
        for (String file : SSL_FILES) {
            String value = getString(prefix + file);
            if (needed && (value == null || value.isBlank())) {
                throw new ConfigException(
                    prefix + file + " is missing: " + property + "=SSL needs this PEM file");
            }
            if (!needed && value != null) {
                throw new ConfigException(prefix + file + " is set, but " + property
                    + "=PLAINTEXT does not use it: remove it, or set SSL");
            }
        }
    }

    /** Refuses properties that the plugin does not have. */
    private static void requireKnown(ConfigDef definition, String prefix, Set<String> keys) {
        for (String key : keys) {
            boolean isOfKafka = OF_THE_BROKER.contains(key) || key.startsWith(OF_KAFKAS_MANAGER);
            if (!isOfKafka && !definition.names().contains(prefix + key)) {
                throw new ConfigException(prefix + key + " is no setting of this plugin, which has "
                    + definition.names().stream().sorted().collect(Collectors.joining(", ")));
            }
        }
    }

    static void requireTarget(String name, Object value) {
        try {
            if (value != null) {
                Target.require((String) value);
            }
        } catch (IllegalArgumentException e) {
            throw new ConfigException(name, value, e.getMessage());
        }
    }
}
