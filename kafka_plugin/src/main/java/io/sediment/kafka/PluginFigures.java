package io.sediment.kafka;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.LongSupplier;

import org.apache.kafka.common.metrics.Gauge;
import org.apache.kafka.common.metrics.PluginMetrics;

/**
 * Figures among the broker's own metrics (KIP-877): in JMX under
 * {@code kafka.server:type=plugins,…}, and wherever the broker reports its metrics to. The broker
 * removes them when it closes the plugin. Kafka 4.3 and 4.4 give their metrics only to a plugin
 * without {@code class.path}: with it the figures are in JMX under {@link JmxBean}'s names alone.
 */
final class PluginFigures {
    private final PluginMetrics metrics;

    PluginFigures(PluginMetrics metrics) {
        this.metrics = metrics;
    }

    /** Adds a figure that is read when the broker reports it. */
    void add(String name, String description, LongSupplier figure) {
        add(name, description, Map.of(), figure);
    }

    /** The same of one RPC. */
    void add(String name, String description, String call, LongSupplier figure) {
        add(name, description, Map.of("call", call), figure);
    }

    private void add(
        String name, String description, Map<String, String> tags, LongSupplier figure
    ) {
        Gauge<Long> gauge = (config, nowMs) -> figure.getAsLong();
        metrics.addMetric(
            metrics.metricName(name, description, new LinkedHashMap<>(tags)), gauge);
    }
}
