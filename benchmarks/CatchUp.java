import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads topics from their beginning with Kafka's own consumer, at its defaults. For each line of
 * its input, "BOOTSTRAP TOPIC ISOLATION END...", one end offset for each partition, it prints the
 * bytes of the values, and the seconds to the first record and to the last.
 */
public final class CatchUp {
    private static final Duration PATIENCE = Duration.ofSeconds(60);

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            List<Long> ends = new ArrayList<>();
            for (int i = 3; i < words.length; i++) {
                ends.add(Long.parseLong(words[i]));
            }
            System.out.println(read(words[0], words[1], words[2], ends));
        }
    }

    private static String read(String bootstrap, String topic, String isolation, List<Long> ends) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "isolation.level", isolation,
            "key.deserializer", ByteArrayDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class);
        long left = ends.stream().mapToLong(Long::longValue).sum();
        long[] next = new long[ends.size()];
        long bytes = 0;
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (int i = 0; i < ends.size(); i++) {
                partitions.add(new TopicPartition(topic, i));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long beganNanos = System.nanoTime();
            long firstNanos = 0;
            while (left > 0) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(PATIENCE);
                if (records.isEmpty()) {
                    throw new IllegalStateException(topic + ": nothing for " + PATIENCE + ", " + left + " left");
                }
                firstNanos = firstNanos == 0 ? System.nanoTime() : firstNanos;
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    int partition = record.partition();
                    if (record.offset() != next[partition]++) {
                        throw new IllegalStateException(topic + ": a hole before " + record);
                    }
                    if (record.offset() < ends.get(partition)) {
                        bytes += record.value().length;
                        left--;
                    }
                }
            }
            double second = 1e9;
            return bytes + " " + (firstNanos - beganNanos) / second
                + " " + (System.nanoTime() - beganNanos) / second;
        }
    }
}
