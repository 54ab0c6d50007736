import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogSegmentMetadataSnapshot;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;

/** For each line of hex on stdin: the value as Kafka writes it again, its partition of 50, its line. */
public final class MetadataOracle {
    public static void main(String[] args) throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        var out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
        var serde = new RemoteLogMetadataSerde();
        var partitioner = new RemoteLogMetadataTopicPartitioner(50);
        var formatter = new RemoteLogMetadataSerde.RemoteLogMetadataFormatter();
        var hex = HexFormat.of();
        long offset = 0;
        for (String line; (line = in.readLine()) != null; offset++) {
            byte[] value = hex.parseHex(line);
            var metadata = serde.deserialize(value);
            boolean isSnapshot = metadata instanceof RemoteLogSegmentMetadataSnapshot;
            int partition = isSnapshot ? -1 : partitioner.metadataPartition(metadata.topicIdPartition());
            var text = new ByteArrayOutputStream();
            formatter.writeTo(
                    new ConsumerRecord<>("__remote_log_metadata", 3, offset, null, value), new PrintStream(text));
            out.print(hex.formatHex(serde.serialize(metadata)) + "\t" + partition + "\t" + text.toString("UTF-8"));
        }
        out.flush();
    }
}
