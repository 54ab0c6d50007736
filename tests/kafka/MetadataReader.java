import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;

/**
 * Prints the segments that Kafka's own manager lists, and then the highest offset of each epoch.
 *
 * <p>Arguments: bootstrap servers, partitions of the metadata topic, a directory, and
 * TOPIC_ID:TOPIC:PARTITION:EPOCHS of each partition.
 */
public final class MetadataReader {
    private static final long TIMEOUT_MS = 60_000;

    public static void main(String[] args) throws Exception {
        Map<String, Object> config = new HashMap<>();
        config.put("broker.id", 1);
        config.put("node.id", 1);
        config.put("cluster.id", "reader");
        config.put("log.dir", args[2]);
        config.put("remote.log.metadata.common.client.bootstrap.servers", args[0]);
        config.put("remote.log.metadata.topic.num.partitions", args[1]);
        config.put("remote.log.metadata.topic.replication.factor", "1");
        var epochs = new HashMap<TopicIdPartition, Integer>();
        for (String each : Arrays.copyOfRange(args, 3, args.length)) {
            String[] parts = each.split(":");
            var tp = new TopicPartition(parts[1], Integer.parseInt(parts[2]));
            epochs.put(new TopicIdPartition(Uuid.fromString(parts[0]), tp), Integer.parseInt(parts[3]));
        }
        var manager = new TopicBasedRemoteLogMetadataManager();
        manager.configure(config);
        if ((Object) manager instanceof org.apache.kafka.server.log.remote.metadata.storage.BrokerReadyCallback ready) {
            ready.onBrokerReady();
        }
        manager.onPartitionLeadershipChanges(new HashSet<>(epochs.keySet()), Set.of());
        long end = System.currentTimeMillis() + TIMEOUT_MS;
        List<String> lines = new ArrayList<>();
        for (var entry : epochs.entrySet()) {
            var tp = entry.getKey();
            while (!manager.isReady(tp)) {
                if (System.currentTimeMillis() > end) {
                    throw new IllegalStateException("not ready: " + tp);
                }
                Thread.sleep(20);
            }
            try {
                manager.listRemoteLogSegments(tp).forEachRemaining(each -> lines.add(each.toString()));
                for (int epoch = 0; epoch < entry.getValue(); epoch++) {
                    lines.add(tp + " " + epoch + " " + manager.highestOffsetForEpoch(tp, epoch).orElse(-1L));
                }
            } catch (RemoteResourceNotFoundException e) {
                lines.add(tp + " is removed");
            }
        }
        lines.forEach(System.out::println);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
