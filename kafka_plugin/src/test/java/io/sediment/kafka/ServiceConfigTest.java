package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Set;

import org.apache.kafka.common.config.ConfigException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

class ServiceConfigTest {
    @ParameterizedTest
    @CsvSource({
        "rsm.example.com:9090, rsm.example.com, 9090",
        "127.0.0.1:1, 127.0.0.1, 1",
        "[2001:db8::1]:65535, 2001:db8::1, 65535",
    })
    void endpointIsHostAndPort(String text, String host, int port) {
        StorageManagerConfig config = new StorageManagerConfig(Map.of("endpoint", text));

        assertEquals(new Endpoint(host, port), config.endpoint());
        assertEquals(text, config.endpoint().toString());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "rsm", "rsm:", ":9090", "rsm:0", "rsm:65536", "rsm:port",
        "http://rsm:9090", "rsm:9090/", "me@rsm:9090", "2001:db8::1:9090", "a b:1", "rsm:1?q"})
    void malformedEndpointIsRefusedByItsFullName(String text) {
        ConfigException failure = assertThrows(
            ConfigException.class, () -> new StorageManagerConfig(Map.of("endpoint", text)));

        assertTrue(failure.getMessage().contains("rsm.config.endpoint"), failure.getMessage());
        assertTrue(failure.getMessage().contains("'" + text + "'"), failure.getMessage());
    }

    @Test
    void missingEndpointIsRefusedByItsFullName() {
        ConfigException failure =
            assertThrows(ConfigException.class, () -> new MetadataManagerConfig(Map.of()));

        assertTrue(failure.getMessage().contains("rlmm.config.endpoint"), failure.getMessage());
    }

    @Test
    void timeoutsHaveDefaultsAndAreTextOrNumbers() {
        StorageManagerConfig defaults = new StorageManagerConfig(Map.of("endpoint", "rsm:1"));
        StorageManagerConfig given = new StorageManagerConfig(Map.of(
            "endpoint", "rsm:1", "request.timeout.ms", "5", "progress.timeout.ms", 6));

        assertEquals(30_000, defaults.requestTimeoutMs());
        assertEquals(60_000, defaults.progressTimeoutMs());
        assertEquals(5, given.requestTimeoutMs());
        assertEquals(6, given.progressTimeoutMs());
    }

    @Test
    void timeoutOfZeroIsRefusedByItsFullName() {
        ConfigException failure = assertThrows(ConfigException.class, () ->
            new StorageManagerConfig(Map.of("endpoint", "rsm:1", "progress.timeout.ms", "0")));

        assertTrue(
            failure.getMessage().contains("rsm.config.progress.timeout.ms"), failure.getMessage());
    }

    @Test
    void brokerIdIsTheNodeIdWhereThereIsOne() {
        assertEquals(-1, brokerId(Map.of("endpoint", "rlmm:1")));
        assertEquals(3, brokerId(Map.of("endpoint", "rlmm:1", "broker.id", 3)));
        assertEquals(4, brokerId(Map.of("endpoint", "rlmm:1", "broker.id", 3, "node.id", "4")));
    }

    @Test
    void onlyWhatAnOperatorWroteInVainIsUnused() {
        MetadataManagerConfig config = new MetadataManagerConfig(Map.of(
            "endpoint", "rlmm:1",
            "node.id", 1,
            "broker.id", 1,
            "cluster.id", "c",
            "log.dir", "/d",
            "remote.log.metadata.common.client.bootstrap.servers", "b:1",
            "endpiont", "typo"));

        assertEquals(Set.of("rlmm.config.endpiont"), config.unused());
    }

    private static int brokerId(Map<String, ?> configs) {
        return new MetadataManagerConfig(configs).brokerId();
    }
}
