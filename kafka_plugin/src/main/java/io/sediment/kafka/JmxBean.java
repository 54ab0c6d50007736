package io.sediment.kafka;

import java.lang.management.ManagementFactory;
import java.util.Optional;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.ObjectName;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Figures in JMX under the name {@code io.sediment.kafka:type=TYPE,broker=ID}, until closed. */
final class JmxBean implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(JmxBean.class);

    private final Optional<ObjectName> published;

    /**
     * Publishes an MXBean. If that fails the broker works on without it.
     *
     * @param broker the broker's id
     */
    JmxBean(String type, String broker, Object bean) {
        published = publish("io.sediment.kafka:type=" + type + ",broker=" + broker, bean);
    }

    /** @param more further key properties of the name, as "key=value,key=value" */
    JmxBean(String type, String broker, String more, Object bean) {
        published =
            publish("io.sediment.kafka:type=" + type + ",broker=" + broker + "," + more, bean);
    }

    @Override
    public void close() {
        published.ifPresent(name -> {
            try {
                ManagementFactory.getPlatformMBeanServer().unregisterMBean(name);
            } catch (JMException e) {
                LOG.debug("{} was not in JMX", name, e);
            }
        });
    }

    private static Optional<ObjectName> publish(String name, Object bean) {
        try {
            ObjectName made = new ObjectName(name);
            ManagementFactory.getPlatformMBeanServer().registerMBean(bean, made);
            return Optional.of(made);
        } catch (InstanceAlreadyExistsException e) {
            LOG.debug("{} is in JMX already", name);
            return Optional.empty();
        } catch (JMException e) {
            LOG.warn("{} is not in JMX", name, e);
            return Optional.empty();
        }
    }
}
