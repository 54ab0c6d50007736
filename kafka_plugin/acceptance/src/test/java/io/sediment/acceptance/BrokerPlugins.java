package io.sediment.acceptance;

import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.common.utils.ChildFirstClassLoader;
import org.apache.kafka.server.log.remote.metadata.storage.ClassLoaderAwareRemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.ClassLoaderAwareRemoteStorageManager;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager;

/**
 * The two plugins that the file of the system property {@code broker.properties} names, made as a
 * broker's RemoteLogManager makes them: by class name, over a child-first class loader of their
 * class path, wrapped so that this loader is the thread's during a call, then configured with
 * their own properties, prefix stripped, and the broker's id.
 */
public final class BrokerPlugins {
    private static final String RSM_CONFIG = "rsm.config.";
    private static final String RLMM_CONFIG = "rlmm.config.";
    private static final int BROKER_ID = 0;
    private static final Properties BROKER = read();

    private BrokerPlugins() {
    }

    /** A configured manager of its own for the caller, who closes it. */
    public static RemoteStorageManager storageManager() {
        ClassLoader loader = loader("remote.log.storage.manager");
        RemoteStorageManager manager = new ClassLoaderAwareRemoteStorageManager(
                instance("remote.log.storage.manager", loader, RemoteStorageManager.class), loader);
        manager.configure(config(RSM_CONFIG));
        return manager;
    }

    /** A configured manager of its own for the caller, who closes it. */
    public static RemoteLogMetadataManager metadataManager() {
        return metadataManager(required(RLMM_CONFIG + "endpoint"));
    }

    /** The same over the RLMM at another endpoint. */
    public static RemoteLogMetadataManager metadataManager(String endpoint) {
        ClassLoader loader = loader("remote.log.metadata.manager");
        RemoteLogMetadataManager manager = new ClassLoaderAwareRemoteLogMetadataManager(
                instance("remote.log.metadata.manager", loader, RemoteLogMetadataManager.class),
                loader);
        Map<String, Object> config = config(RLMM_CONFIG);
        config.put("endpoint", endpoint);
        config.put("cluster.id", "acceptance");
        config.put("log.dir", System.getProperty("java.io.tmpdir"));
        manager.configure(config);
        return manager;
    }

    /** The values of a property that is a list, at least one. */
    public static List<String> list(String name) {
        return List.of(required(name).split(","));
    }

    private static ClassLoader loader(String prefix) {
        String classPath = required(prefix + ".class.path");
        return new ChildFirstClassLoader(classPath, BrokerPlugins.class.getClassLoader());
    }

    private static <T> T instance(String prefix, ClassLoader loader, Class<T> type) {
        String name = required(prefix + ".class.name");
        try {
            return type.cast(loader.loadClass(name).getDeclaredConstructor().newInstance());
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(name + " cannot be made", e);
        }
    }

    private static Map<String, Object> config(String prefix) {
        Map<String, Object> config = new HashMap<>();
        config.put("node.id", BROKER_ID);
        config.put("broker.id", BROKER_ID);
        for (String name : BROKER.stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                config.put(name.substring(prefix.length()), BROKER.getProperty(name));
            }
        }
        return config;
    }

    private static String required(String name) {
        String value = BROKER.getProperty(name);
        if (value == null) {
            throw new IllegalStateException("the file of -Dbroker.properties has no " + name);
        }
        return value;
    }

    private static Properties read() {
        String file = System.getProperty("broker.properties");
        if (file == null) {
            throw new IllegalStateException(
                    "-Dbroker.properties=FILE is not given; pom.xml says what it holds");
        }
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            properties.load(reader);
        } catch (IOException e) {
            throw new UncheckedIOException("cannot read " + file, e);
        }
        return properties;
    }
}
