package io.sediment.kafka;

import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;

/**
 * The settings of both plugins. The broker strips its prefix from the keys; it is put back here, so
 * that every message names the property that an operator wrote.
 */
abstract class ServiceConfig extends AbstractConfig {
    private static final String ENDPOINT = "endpoint";
    private static final String REQUEST_TIMEOUT_MS = "request.timeout.ms";
    private static final int DEFAULT_REQUEST_TIMEOUT_MS = 30_000;
    // Not a setting of ours, but never a mistake of the operator's either.
    private static final List<String> OF_THE_BROKER =
        List.of("node.id", "broker.id", "cluster.id", "log.dir");
    private static final String CLIENTS_OF_THE_BROKER = "remote.log.metadata.common.client.";

    private final Endpoint endpoint;
    private final int requestTimeoutMs;

    /** @throws ConfigException naming the property at fault in full, prefix included */
    ServiceConfig(ConfigDef definition, String prefix, Map<String, ?> configs) {
        super(definition, withPrefix(prefix, configs));
        endpoint = Endpoint.parse(getString(prefix + ENDPOINT));
        requestTimeoutMs = getInt(prefix + REQUEST_TIMEOUT_MS);
        configs.keySet().stream()
            .filter(key -> OF_THE_BROKER.contains(key) || key.startsWith(CLIENTS_OF_THE_BROKER))
            .forEach(key -> ignore(prefix + key));
    }

    static ConfigDef definition(String prefix, String service) {
        return new ConfigDef()
            .define(
                prefix + ENDPOINT,
                ConfigDef.Type.STRING,
                ConfigDef.NO_DEFAULT_VALUE,
                ConfigDef.LambdaValidator.with(
                    ServiceConfig::requireEndpoint, () -> "host:port, an IPv6 address in brackets"),
                ConfigDef.Importance.HIGH,
                "Where " + service + " listens: host:port, an IPv6 address in brackets.")
            .define(
                prefix + REQUEST_TIMEOUT_MS,
                ConfigDef.Type.INT,
                DEFAULT_REQUEST_TIMEOUT_MS,
                ConfigDef.Range.atLeast(1),
                ConfigDef.Importance.LOW,
                "How long a call that is not a stream may take, its retries included.");
    }

    /** Where the service listens. */
    Endpoint endpoint() {
        return endpoint;
    }

    /** How long a call that is not a stream may take, its retries included. */
    int requestTimeoutMs() {
        return requestTimeoutMs;
    }

    private static Map<String, Object> withPrefix(String prefix, Map<String, ?> configs) {
        return configs.entrySet().stream()
            .filter(entry -> entry.getValue() != null)
            .collect(Collectors.toMap(entry -> prefix + entry.getKey(), Map.Entry::getValue));
    }

    private static void requireEndpoint(String name, Object value) {
        try {
            Endpoint.parse((String) value);
        } catch (IllegalArgumentException e) {
            throw new ConfigException(name, value, e.getMessage());
        }
    }
}
