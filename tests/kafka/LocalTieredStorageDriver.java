import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LocalTieredStorage;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteResourceNotFoundException;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/**
 * For each line "copy|read topic-id topic partition segment-id start end size directory" on stdin: copies
 * the files of the directory with Kafka's LocalTieredStorage, or prints a sha256 of what it reads.
 */
public final class LocalTieredStorageDriver {
    public static void main(String[] args) throws Exception {
        var storage = new LocalTieredStorage();
        storage.configure(Map.of("dir", args[0], "node.id", 1, "delete.on.close", "false"));
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            var words = line.split(" ");
            var partition = new TopicIdPartition(
                    Uuid.fromString(words[1]), new TopicPartition(words[2], Integer.parseInt(words[3])));
            var id = new RemoteLogSegmentId(partition, Uuid.fromString(words[4]));
            var metadata = new RemoteLogSegmentMetadata(
                    id, Long.parseLong(words[5]), Long.parseLong(words[6]), 1, 1, 1, Integer.parseInt(words[7]),
                    Map.of(0, Long.parseLong(words[5])));
            if (words[0].equals("copy")) {
                copy(storage, metadata, Path.of(words[8]));
            } else {
                System.out.println("LOG " + digest(storage.fetchLogSegment(metadata, 0)));
                for (var kind : IndexType.values()) {
                    try {
                        System.out.println(kind + " " + digest(storage.fetchIndex(metadata, kind)));
                    } catch (RemoteResourceNotFoundException e) {
                        System.out.println(kind + " none");
                    }
                }
            }
        }
        storage.close();
    }

    private static void copy(LocalTieredStorage storage, RemoteLogSegmentMetadata metadata, Path files)
            throws Exception {
        var transactions = files.resolve("TRANSACTION");
        var custom = storage.copyLogSegmentData(metadata, new LogSegmentData(
                files.resolve("LOG"), files.resolve("OFFSET"), files.resolve("TIMESTAMP"),
                Files.exists(transactions) ? Optional.of(transactions) : Optional.empty(),
                files.resolve("PRODUCER_SNAPSHOT"),
                ByteBuffer.wrap(Files.readAllBytes(files.resolve("LEADER_EPOCH")))));
        System.out.println("copied " + custom.map(each -> HexFormat.of().formatHex(each.value())).orElse("none"));
    }

    private static String digest(InputStream in) throws Exception {
        try (in) {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(in.readAllBytes()));
        }
    }
}
