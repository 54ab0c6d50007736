import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;

/**
 * Writes the metadata of finished segments as Kafka's topic of metadata has it: two records each,
 * by Kafka's own classes, into the topic's only partition. For each line of its input, "BOOTSTRAP
 * TOPIC-ID TOPIC SEGMENTS", it prints the records written. The segments are those of
 * many_segments.py: partition 0, one leader epoch, no store has them.
 */
public final class SegmentMetadata {
    private static final String METADATA_TOPIC = "__remote_log_metadata";
    private static final int BROKER_ID = 1;
    private static final int OFFSETS_PER_SEGMENT = 100;
    private static final int SIZE_BYTES = 1024;

    private final RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private int written;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] words = line.split(" ");
            UUID id = UUID.fromString(words[1]);
            Uuid topicId = new Uuid(id.getMostSignificantBits(), id.getLeastSignificantBits());
            TopicIdPartition partition = new TopicIdPartition(topicId, 0, words[2]);
            System.out.println(
                new SegmentMetadata().write(words[0], partition, Integer.parseInt(words[3])));
        }
    }

    private int write(String bootstrap, TopicIdPartition partition, int segments) throws Exception {
        Map<String, Object> settings = Map.of(
            "bootstrap.servers", bootstrap,
            "key.serializer", ByteArraySerializer.class,
            "value.serializer", ByteArraySerializer.class);
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < segments; number++) {
                RemoteLogSegmentId id = new RemoteLogSegmentId(partition, Uuid.randomUuid());
                long start = (long) number * OFFSETS_PER_SEGMENT;
                long atMs = 1_000 + number;
                send(producer, new RemoteLogSegmentMetadata(
                    id, start, start + OFFSETS_PER_SEGMENT - 1, atMs, BROKER_ID, atMs, SIZE_BYTES,
                    Map.of(0, start), true));
                send(producer, new RemoteLogSegmentMetadataUpdate(
                    id, atMs, Optional.empty(), RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                    BROKER_ID));
            }
            producer.flush();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return written;
    }

    private void send(KafkaProducer<byte[], byte[]> producer, RemoteLogMetadata metadata) {
        byte[] value = serde.serialize(metadata);
        producer.send(new ProducerRecord<>(METADATA_TOPIC, 0, null, value), (sent, error) -> {
            if (error != null) {
                failure.set(error);
            }
        });
        written++;
    }
}
