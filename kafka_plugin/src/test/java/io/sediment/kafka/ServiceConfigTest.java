package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashMap;
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
        StorageManagerConfig config = storage("endpoint", text);

        assertEquals(new Endpoint(host, port), config.endpoint());
        assertEquals(text, config.endpoint().toString());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "rsm", "rsm:", ":9090", "rsm:0", "rsm:65536", "rsm:port",
        "http://rsm:9090", "rsm:9090/", "me@rsm:9090", "2001:db8::1:9090", "a b:1", "rsm:1?q"})
    void malformedEndpointIsRefusedByItsFullName(String text) {
        ConfigException failure = assertThrows(
            ConfigException.class, () -> storage("endpoint", text));

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
        StorageManagerConfig defaults = storage("endpoint", "rsm:1");
        StorageManagerConfig given = storage(
            "endpoint", "rsm:1", "request.timeout.ms", "5", "progress.timeout.ms", 6);

        assertEquals(30_000, defaults.requestTimeoutMs());
        assertEquals(60_000, defaults.progressTimeoutMs());
        assertEquals(5, given.requestTimeoutMs());
        assertEquals(6, given.progressTimeoutMs());
    }

    @Test
    void timeoutOfZeroIsRefusedByItsFullName() {
        ConfigException failure = assertThrows(ConfigException.class, () ->
            storage("endpoint", "rsm:1", "progress.timeout.ms", "0"));

        assertTrue(
            failure.getMessage().contains("rsm.config.progress.timeout.ms"), failure.getMessage());
    }

    @Test
    void directReadsWithoutRoomForAChunkAreRefused() {
        assertFalse(storage("endpoint", "rsm:1").directReads());
        assertTrue(storage("endpoint", "rsm:1", "direct.reads", "true").directReads());
        ConfigException failure = assertThrows(ConfigException.class, () ->
            storage("endpoint", "rsm:1", "direct.reads", "true", "read.ahead.max.bytes", 0));
        assertTrue(failure.getMessage().contains("rsm.config.read.ahead.max.bytes=0"),
            failure.getMessage());
    }

    @Test
    void brokerIdIsTheNodeIdWhereThereIsOne() {
        assertEquals(-1, brokerId());
        assertEquals(3, brokerId("broker.id", 3));
        assertEquals(4, brokerId("broker.id", 3, "node.id", "4"));
    }

    @Test
    void onlyWhatAnOperatorWroteInVainIsUnused() {
        MetadataManagerConfig config = new MetadataManagerConfig(Map.of(
            "endpoint", "rlmm:1",
            "security.protocol", "PLAINTEXT",
            "node.id", 1,
            "broker.id", 1,
            "cluster.id", "c",
            "log.dir", "/d",
            "remote.log.metadata.common.client.bootstrap.servers", "b:1",
            "endpiont", "typo"));

        assertEquals(Set.of("rlmm.config.endpiont"), config.unused());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "SASL_SSL", "ssl", "TLS"})
    void otherProtocolIsRefusedWithBothWays(String protocol) {
        assertRefused(Map.of("endpoint", "rsm:1", "security.protocol", protocol),
            "rsm.config.security.protocol=" + protocol,
            "set SSL, with rsm.config.ssl.ca.file, rsm.config.ssl.certificate.file,"
                + " rsm.config.ssl.key.file", "or set PLAINTEXT");
    }

    @Test
    void plaintextIsNoDefault() {
        assertRefused(Map.of("endpoint", "rsm:1"),
            "rsm.config.security.protocol is missing", "set SSL, with", "or set PLAINTEXT");
    }

    @ParameterizedTest
    @ValueSource(strings = {"ssl.ca.file", "ssl.certificate.file", "ssl.key.file"})
    void eachTlsFileIsRequiredWithSslAndRefusedWithoutIt(String missing) {
        Map<String, String> settings = new HashMap<>(Map.of(
            "endpoint", "rsm:1", "security.protocol", "SSL", "ssl.ca.file", "/ca",
            "ssl.certificate.file", "/crt", "ssl.key.file", "/key"));
        settings.remove(missing);

        assertRefused(settings, "rsm.config." + missing + " is missing");
        assertRefused(
            Map.of("endpoint", "rsm:1", "security.protocol", "PLAINTEXT", missing, "/file"),
            "rsm.config." + missing + " is set, but rsm.config.security.protocol=PLAINTEXT");
    }

    private static void assertRefused(Map<String, ?> settings, String... words) {
        ConfigException failure =
            assertThrows(ConfigException.class, () -> new StorageManagerConfig(settings));
        for (String word : words) {
            assertTrue(failure.getMessage().contains(word), failure.getMessage());
        }
    }

    private static StorageManagerConfig storage(Object... settings) {
        return new StorageManagerConfig(plaintext(settings));
    }

    private static int brokerId(Object... settings) {
        Map<String, Object> configs = plaintext(settings);
        configs.put("endpoint", "rlmm:1");
        return new MetadataManagerConfig(configs).brokerId();
    }

    /** Settings by name and value, and plaintext. */
    private static Map<String, Object> plaintext(Object... settings) {
        Map<String, Object> configs = new HashMap<>(Map.of("security.protocol", "PLAINTEXT"));
        for (int i = 0; i < settings.length; i += 2) {
            configs.put((String) settings[i], settings[i + 1]);
        }
        return configs;
    }
}
