package io.sediment.kafka;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.config.ConfigException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class ServiceConfigTest {
    @ParameterizedTest
    @ValueSource(strings = {"rsm.example.com:9090", "127.0.0.1:1", "[2001:db8::1]:65535",
        "dns:///rsm:9090", "ipv4:127.0.0.1:1", "ipv4:192.0.2.1:1,192.0.2.1:2"})
    void endpointIsATargetOfGrpc(String text) {
        assertEquals(text, storage("endpoint", text).target());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "rsm", "rsm:", ":9090", "rsm:0", "rsm:65536", "rsm:port",
        "http://rsm:9090", "rsm:9090/", "me@rsm:9090", "2001:db8::1:9090", "a b:1", "rsm:1?q",
        "a:1,b:1", "dns:rsm:1", "dns:///rsm", "ipv4:rsm:1", "ipv4:192.0.2.1:1,",
        "ipv4:192.0.2.1:1,192.0.2.1", "ipv4:192.0.2.1:1,192.0.2.1:1"})
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
    void directoryIsRefusedIfItCannotBeUsedAndItsBoundWithoutIt(@TempDir Path parent)
        throws Exception {
        Path file = Files.writeString(parent.resolve("file"), "x");
        StorageManagerConfig config =
            storage("endpoint", "rsm:1", "read.ahead.directory", file.toString());
        ConfigException failure =
            assertThrows(ConfigException.class, config::openReadAheadDirectory);
        assertTrue(failure.getMessage().contains("rsm.config.read.ahead.directory=" + file
            + " cannot be created or written: "), failure.getMessage());
        assertTrue(storage("endpoint", "rsm:1").openReadAheadDirectory().isEmpty());
        assertRefused(
            plaintext("endpoint", "rsm:1", "rlmm.endpoint", "rlmm:1",
                "read.ahead.directory.max.bytes", 1L << 32),
            "rsm.config.read.ahead.directory.max.bytes is set, but", "directory is not");
        assertRefused(
            plaintext("endpoint", "rsm:1", "rlmm.endpoint", "rlmm:1",
                "read.ahead.directory", "/d", "read.ahead.max.bytes", 0),
            "rsm.config.read.ahead.max.bytes=0 has no room for one");
        assertRefused(plaintext("endpoint", "rsm:1", "rlmm.endpoint", "rlmm:1",
            "read.ahead.directory", " "), "is empty");
        assertRefused(plaintext("endpoint", "rsm:1"), "rsm.config.rlmm.endpoint is missing");
    }

    @Test
    void brokerIdIsTheNodeIdWhereThereIsOne() {
        assertEquals(-1, brokerId());
        assertEquals(3, brokerId("broker.id", 3));
        assertEquals(4, brokerId("broker.id", 3, "node.id", "4"));
    }

    @Test
    void whatTheBrokerSetsAndWhatIsOfKafkasManagerIsAccepted() {
        new MetadataManagerConfig(Map.of(
            "endpoint", "rlmm:1",
            "security.protocol", "PLAINTEXT",
            "node.id", 1,
            "broker.id", 1,
            "cluster.id", "c",
            "log.dir", "/d",
            "remote.log.metadata.topic.replication.factor", 3,
            "remote.log.metadata.common.client.bootstrap.servers", "b:1"));
    }

    @Test
    void unknownSettingIsRefusedWithThoseThatThereAre() {
        assertRefused(
            Map.of("endpoint", "rsm:1", "security.protocol", "PLAINTEXT", "ssl.ca.fle", "x"),
            "rsm.config.ssl.ca.fle is no setting of this plugin", ", rsm.config.ssl.ca.file, ");
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "SASL_SSL", "ssl", "TLS"})
    void otherProtocolIsRefusedWithBothWays(String protocol) {
        assertRefused(Map.of("endpoint", "rsm:1", "security.protocol", protocol),
            "rsm.config.security.protocol=" + protocol,
            "set SSL, with rsm.config.ssl.ca.file, rsm.config.ssl.certificate.file,"
                + " rsm.config.ssl.key.file", "or set PLAINTEXT");
    }

    @ParameterizedTest
    @ValueSource(strings = {"ssl.ca.file", "ssl.certificate.file", "ssl.key.file"})
    void pastedPemIsRefusedWithoutItsContent(String file) {
        for (String pasted : List.of("-----BEGIN PRIVATE KEY-----s3cret", "s3\ncret")) {
            ConfigException failure = assertThrows(ConfigException.class, () ->
                new StorageManagerConfig(
                    Map.of("endpoint", "rsm:1", "security.protocol", "SSL", file, pasted)));
            assertEquals("rsm.config." + file + " must be the name of a PEM file, not its content",
                failure.getMessage());
        }
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
        Map<String, Object> configs = plaintext(settings);
        configs.put("rlmm.endpoint", "rlmm:1");
        return new StorageManagerConfig(configs);
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
