import com.sun.tools.attach.VirtualMachine;
import java.util.TreeSet;
import javax.management.MBeanAttributeInfo;
import javax.management.MBeanServerConnection;
import javax.management.ObjectName;
import javax.management.remote.JMXConnector;
import javax.management.remote.JMXConnectorFactory;
import javax.management.remote.JMXServiceURL;

/**
 * Prints numbers and flags that a process of this user shows over JMX, one a line: object name,
 * attribute and value with tabs between them. Arguments: the process's id, then patterns of object
 * names. The process needs no JMX port: its agent is started through the attach API.
 */
public final class ReadJmx {
    public static void main(String[] arguments) throws Exception {
        VirtualMachine process = VirtualMachine.attach(arguments[0]);
        String address = process.startLocalManagementAgent();
        process.detach();
        try (JMXConnector connector = JMXConnectorFactory.connect(new JMXServiceURL(address))) {
            MBeanServerConnection beans = connector.getMBeanServerConnection();
            for (int i = 1; i < arguments.length; i++) {
                for (ObjectName name : new TreeSet<>(
                    beans.queryNames(new ObjectName(arguments[i]), null))) {
                    print(beans, name);
                }
            }
        }
    }

    private static void print(MBeanServerConnection beans, ObjectName name) throws Exception {
        for (MBeanAttributeInfo attribute : beans.getMBeanInfo(name).getAttributes()) {
            Object value = beans.getAttribute(name, attribute.getName());
            if (value instanceof Number || value instanceof Boolean) {
                System.out.println(name + "\t" + attribute.getName() + "\t" + value);
            }
        }
    }
}
