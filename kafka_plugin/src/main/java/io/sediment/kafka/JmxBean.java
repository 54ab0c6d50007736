package io.sediment.kafka;

import java.lang.management.ManagementFactory;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.LongSupplier;
import javax.management.Attribute;
import javax.management.AttributeList;
import javax.management.AttributeNotFoundException;
import javax.management.DynamicMBean;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanInfo;
import javax.management.ObjectName;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Figures in JMX under the name {@code io.sediment.kafka:type=TYPE,broker=ID}, until closed. Not
 * among the broker's own metrics (KIP-877): Kafka 4.3 and 4.4 give them to no plugin with a
 * {@code class.path}.
 */
final class JmxBean implements DynamicMBean, AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(JmxBean.class);

    private final Map<String, LongSupplier> figures;
    private final Optional<ObjectName> published;

    /**
     * Publishes figures. If that fails the broker works on without them.
     *
     * @param type and further key properties of the name: "Calls,call=FetchIndex"
     * @param broker the broker's id
     * @param figures by attribute, each read when it is asked for
     */
    JmxBean(String type, String broker, Map<String, LongSupplier> figures) {
        this.figures = new TreeMap<>(figures);
        String more = type.replaceFirst("^\\w+", "");
        published = publish("io.sediment.kafka:type="
            + type.substring(0, type.length() - more.length()) + ",broker=" + broker + more);
    }

    /** Returns a figure by its attribute. */
    long get(String attribute) {
        return figures.get(attribute).getAsLong();
    }

    @Override
    public Object getAttribute(String attribute) throws AttributeNotFoundException {
        LongSupplier figure = figures.get(attribute);
        if (figure == null) {
            throw new AttributeNotFoundException(attribute);
        }
        return figure.getAsLong();
    }

    @Override
    public AttributeList getAttributes(String[] attributes) {
        AttributeList found = new AttributeList();
        for (String name : attributes) {
            Optional.ofNullable(figures.get(name))
                .ifPresent(figure -> found.add(new Attribute(name, figure.getAsLong())));
        }
        return found;
    }

    @Override
    public void setAttribute(Attribute attribute) throws AttributeNotFoundException {
        throw new AttributeNotFoundException(attribute.getName());
    }

    @Override
    public AttributeList setAttributes(AttributeList attributes) {
        return new AttributeList();
    }

    @Override
    public Object invoke(String action, Object[] arguments, String[] signature) {
        throw new UnsupportedOperationException(action);
    }

    @Override
    public MBeanInfo getMBeanInfo() {
        MBeanAttributeInfo[] attributes = figures.keySet().stream()
            .map(name -> new MBeanAttributeInfo(name, "long", name, true, false, false))
            .toArray(MBeanAttributeInfo[]::new);
        return new MBeanInfo(
            JmxBean.class.getName(), "Figures of the plugin", attributes, null, null, null);
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

    private Optional<ObjectName> publish(String name) {
        try {
            ObjectName made = new ObjectName(name);
            ManagementFactory.getPlatformMBeanServer().registerMBean(this, made);
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
