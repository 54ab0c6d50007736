import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads the first partition of a topic from its beginning to an offset, again and again, with
 * several of Kafka's own consumers at once, at their defaults. For a line "BOOTSTRAP TOPIC END
 * CONSUMERS" of its input it begins and prints "began"; for the next line, whatever it says, it
 * ends, and prints the bytes read by all of them and the seconds that took.
 */
public final class Readers {
    private static final Duration PATIENCE = Duration.ofMillis(200);

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            AtomicBoolean ended = new AtomicBoolean();
            AtomicLong bytes = new AtomicLong();
            AtomicReference<Exception> failure = new AtomicReference<>();
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < Integer.parseInt(words[3]); i++) {
                threads.add(new Thread(() -> {
                    try {
                        read(words[0], words[1], Long.parseLong(words[2]), ended, bytes);
                    } catch (Exception e) {
                        failure.set(e);
                    }
                }));
            }
            long beganNanos = System.nanoTime();
            threads.forEach(Thread::start);
            System.out.println("began");
            input.readLine();
            ended.set(true);
            double seconds = (System.nanoTime() - beganNanos) / 1e9;
            for (Thread thread : threads) {
                thread.join();
            }
            if (failure.get() != null) {
                throw failure.get();
            }
            System.out.println(bytes + " " + seconds);
        }
    }

    private static void read(
            String bootstrap, String topic, long end, AtomicBoolean ended, AtomicLong bytes) {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "key.deserializer", ByteArrayDeserializer.class,
            "value.deserializer", ByteArrayDeserializer.class);
        List<TopicPartition> partition = List.of(new TopicPartition(topic, 0));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.assign(partition);
            consumer.seekToBeginning(partition);
            while (!ended.get()) {
                long last = -1;
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(PATIENCE)) {
                    bytes.addAndGet(record.value().length);
                    last = record.offset();
                }
                if (last >= end - 1) {
                    consumer.seekToBeginning(partition);
                }
            }
        }
    }
}
