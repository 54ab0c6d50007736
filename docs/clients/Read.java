import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Print a partition's records from the tier and the broker's disk: Read LISTENER TOPIC PARTITION. */
public final class Read {
    public static void main(String[] args) {
        TopicPartition partition = new TopicPartition(args[1], Integer.parseInt(args[2]));
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", args[0],
                "enable.auto.commit", false,
                "isolation.level", "read_committed");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            // There are no consumer groups: a program assigns partitions, and keeps its offsets.
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while (consumer.position(partition) < end) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
                    System.out.println(record.offset() + " " + record.timestamp() + " "
                            + length(record.key()) + " " + length(record.value()));
                }
            }
        }
    }

    private static int length(byte[] bytes) {
        return bytes == null ? -1 : bytes.length;
    }
}
