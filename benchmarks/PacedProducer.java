import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes records at a fixed rate with Kafka's own producer, at its defaults but for acks. For each
 * line of its input, "BOOTSTRAP TOPIC ACKS RECORD-BYTES RECORDS-PER-SECOND RECORDS", it prints the
 * records per second that were acknowledged, and the percentiles 50, 95, 99 and 99.9 of the
 * milliseconds from the time at which a record was due to its acknowledgement.
 */
public final class PacedProducer {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            System.out.println(produce(
                words[0], words[1], words[2], Integer.parseInt(words[3]),
                Integer.parseInt(words[4]), Integer.parseInt(words[5])));
        }
    }

    private static String produce(
            String bootstrap, String topic, String acks, int recordBytes, int perSecond,
            int records) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "acks", acks,
            "key.serializer", ByteArraySerializer.class,
            "value.serializer", ByteArraySerializer.class);
        byte[] value = new byte[recordBytes];
        new Random().nextBytes(value);
        long[] nanos = new long[records];
        AtomicReference<Exception> failure = new AtomicReference<>();
        double second = 1e9;
        long beganNanos;
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.partitionsFor(topic);
            beganNanos = System.nanoTime();
            for (int i = 0; i < records; i++) {
                int number = i;
                long dueNanos = beganNanos + (long) (i * second / perSecond);
                for (long now = System.nanoTime(); now < dueNanos; now = System.nanoTime()) {
                    LockSupport.parkNanos(dueNanos - now);
                }
                producer.send(new ProducerRecord<>(topic, value), (sent, error) -> {
                    nanos[number] = System.nanoTime() - dueNanos;
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            producer.flush();
        }
        long tookNanos = System.nanoTime() - beganNanos;
        if (failure.get() != null) {
            throw failure.get();
        }
        Arrays.sort(nanos);
        double millisecond = 1e6;
        StringBuilder answer = new StringBuilder(String.valueOf(records * second / tookNanos));
        for (int permille : new int[] {500, 950, 990, 999}) {
            answer.append(" ").append(nanos[(int) ((long) records * permille / 1000)] / millisecond);
        }
        return answer.toString();
    }
}
