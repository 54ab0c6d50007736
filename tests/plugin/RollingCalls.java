import io.sediment.kafka.SedimentRemoteLogMetadataManager;
import io.sediment.kafka.SedimentRemoteStorageManager;
import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import javax.management.MBeanServer;
import javax.management.ObjectName;

import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.server.log.remote.storage.LogSegmentData;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentId;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadata;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentMetadataUpdate;
import org.apache.kafka.server.log.remote.storage.RemoteLogSegmentState;
import org.apache.kafka.server.log.remote.storage.RemoteStorageManager.IndexType;

/**
 * Calls RSM and RLMM through the plugin without a pause, from several threads each, as a broker
 * does. Arguments: the targets of RSM and of RLMM, threads for each, a directory. For each line
 * of its input it prints "ROUNDS FAILED_ROUNDS FAILED_CALLS REPEATS", the last two of them from the
 * plugin's figures in JMX; each failure is printed on standard error.
 */
public final class RollingCalls {
    private static final int LOG_BYTES = 100_000;
    private static final AtomicLong ROUNDS = new AtomicLong();
    private static final ConcurrentLinkedQueue<Exception> FAILURES = new ConcurrentLinkedQueue<>();

    private interface Round {
        void make(long number) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        SedimentRemoteStorageManager rsm = new SedimentRemoteStorageManager();
        Map<String, Object> settings = new HashMap<>(settings(arguments[0]));
        settings.put("rlmm.endpoint", arguments[1]);
        rsm.configure(settings);
        SedimentRemoteLogMetadataManager rlmm = new SedimentRemoteLogMetadataManager();
        rlmm.configure(settings(arguments[1]));
        byte[] log = new byte[LOG_BYTES];
        new Random(1).nextBytes(log);
        RemoteLogSegmentMetadata segment = segment(partition(), 0);
        rsm.copyLogSegmentData(segment, files(Path.of(arguments[3]), log));
        for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
            begin(number -> read(rsm, segment, log));
            TopicIdPartition partition = partition();
            begin(number -> change(rlmm, partition, number));
        }
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            System.out.println(ROUNDS.get() + " " + FAILURES.size() + " "
                + sum("Failures") + " " + sum("Repeats"));
        }
        System.exit(0);
    }

    private static void begin(Round round) {
        Thread thread = new Thread(() -> {
            for (long number = 0; ; number++) {
                try {
                    round.make(number);
                } catch (Exception e) {
                    e.printStackTrace();
                    FAILURES.add(e);
                }
                ROUNDS.incrementAndGet();
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static void read(
        SedimentRemoteStorageManager rsm, RemoteLogSegmentMetadata segment, byte[] log
    ) throws Exception {
        try (InputStream bytes = rsm.fetchLogSegment(segment, 0, LOG_BYTES - 1)) {
            require(Arrays.equals(log, bytes.readAllBytes()), "other bytes");
        }
        try (InputStream index = rsm.fetchIndex(segment, IndexType.OFFSET)) {
            require(index.readAllBytes().length == 2, "another index");
        }
    }

    private static void change(
        SedimentRemoteLogMetadataManager rlmm, TopicIdPartition partition, long number
    ) throws Exception {
        RemoteLogSegmentMetadata segment = segment(partition, number);
        rlmm.addRemoteLogSegmentMetadata(segment).get();
        rlmm.updateRemoteLogSegmentMetadata(new RemoteLogSegmentMetadataUpdate(
            segment.remoteLogSegmentId(), System.currentTimeMillis(), Optional.empty(),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1)).get();
        require(rlmm.remoteLogSegmentMetadata(partition, 0, number).isPresent(), "no segment");
    }

    private static void require(boolean holds, String failure) {
        if (!holds) {
            throw new IllegalStateException(failure);
        }
    }

    private static Map<String, Object> settings(String target) {
        return Map.of(
            "endpoint", target, "security.protocol", "PLAINTEXT", "node.id", 1, "broker.id", 1);
    }

    private static TopicIdPartition partition() {
        return new TopicIdPartition(Uuid.randomUuid(), new TopicPartition("orders", 0));
    }

    /** A segment of one offset. */
    private static RemoteLogSegmentMetadata segment(TopicIdPartition partition, long offset) {
        return new RemoteLogSegmentMetadata(
            new RemoteLogSegmentId(partition, Uuid.randomUuid()), offset, offset,
            System.currentTimeMillis(), 1, System.currentTimeMillis(), LOG_BYTES, Optional.empty(),
            RemoteLogSegmentState.COPY_SEGMENT_STARTED, Map.of(0, offset), true);
    }

    private static LogSegmentData files(Path directory, byte[] log) throws Exception {
        List<Path> paths = new ArrayList<>();
        for (String suffix : List.of("log", "index", "timeindex", "snapshot")) {
            byte[] content = suffix.equals("log") ? log : new byte[] {1, 2};
            paths.add(Files.write(directory.resolve("0." + suffix), content));
        }
        return new LogSegmentData(paths.get(0), paths.get(1), paths.get(2), Optional.empty(),
            paths.get(3), ByteBuffer.wrap("0\n1\n0 0\n".getBytes()));
    }

    private static long sum(String figure) throws Exception {
        MBeanServer beans = ManagementFactory.getPlatformMBeanServer();
        long sum = 0;
        ObjectName calls = new ObjectName("io.sediment.kafka:type=Calls,*");
        for (ObjectName name : beans.queryNames(calls, null)) {
            sum += (long) beans.getAttribute(name, figure);
        }
        return sum;
    }
}
