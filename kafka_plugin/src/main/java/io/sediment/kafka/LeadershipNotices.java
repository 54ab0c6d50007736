package io.sediment.kafka;

import io.grpc.Status;
import io.grpc.StatusException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.apache.kafka.common.TopicIdPartition;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reports to RLMM which partitions this broker leads and follows, from a thread of its own: the
 * broker's metadata thread, which announces them, must neither wait nor see a failure. A notice is
 * retried until RLMM accepts it. A partition's stop is reported once: nothing depends on it.
 */
final class LeadershipNotices implements AutoCloseable {
    /** The most partitions of a call. */
    static final int BATCH_PARTITIONS = 10_000;
    private static final Logger LOG = LoggerFactory.getLogger(LeadershipNotices.class);
    private static final long CLOSE_TIMEOUT_MS = 5_000;

    private final Sender sender;
    private final long firstBackoffMs;
    private final long maxBackoffMs;
    private final Runnable takenChanged;
    private final Thread thread;

    // All below are guarded by this.
    private final Map<TopicIdPartition, Role> pending = new LinkedHashMap<>();
    private final Set<TopicIdPartition> taken = new HashSet<>();
    private final Set<TopicIdPartition> refused = new HashSet<>();
    private final Set<TopicIdPartition> stopped = new LinkedHashSet<>();
    private boolean closed;

    /** The broker's role for a partition. */
    enum Role { LEADER, FOLLOWER }

    /** Makes the calls. */
    interface Sender {
        void onPartitionLeadershipChanges(Map<TopicIdPartition, Role> roles) throws StatusException;

        void onStopPartitions(Set<TopicIdPartition> partitions) throws StatusException;
    }

    /**
     * Starts the thread, which waits for {@link #announce} and {@link #stop}.
     *
     * @param firstBackoffMs about how long to wait after a failed call; doubles with each
     * @param maxBackoffMs the longest wait after a failed call
     * @param takenChanged is run when {@link #taken} has changed; neither waits nor throws
     */
    LeadershipNotices(
        Sender sender, long firstBackoffMs, long maxBackoffMs, Runnable takenChanged
    ) {
        this.sender = sender;
        this.firstBackoffMs = firstBackoffMs;
        this.maxBackoffMs = maxBackoffMs;
        this.takenChanged = takenChanged;
        this.thread = new Thread(this::run, "sediment-leadership-notices");
        this.thread.setDaemon(true);
        this.thread.start();
    }

    /** Queues roles. Never throws, never waits. A taken partition stays so meanwhile. */
    synchronized void announce(Set<TopicIdPartition> leaders, Set<TopicIdPartition> followers) {
        leaders.forEach(partition -> announce(partition, Role.LEADER));
        followers.forEach(partition -> announce(partition, Role.FOLLOWER));
        notifyAll();
    }

    /** Queues stops of partitions. Never throws, never waits. */
    synchronized void stop(Set<TopicIdPartition> partitions) {
        for (TopicIdPartition partition : partitions) {
            pending.remove(partition);
            taken.remove(partition);
            refused.remove(partition);
            stopped.add(partition);
        }
        notifyAll();
        takenChanged.run();
    }

    /** Returns whether RLMM has accepted a role of the partition since its last stop. */
    synchronized boolean isTaken(TopicIdPartition partition) {
        return taken.contains(partition);
    }

    /** Returns the partitions for which {@link #isTaken} holds, up to the limit. */
    synchronized List<TopicIdPartition> taken(int limit) {
        return taken.stream().limit(limit).toList();
    }

    /** Stops the thread, and drops notices that were not sent. Idempotent. */
    @Override
    public void close() {
        synchronized (this) {
            closed = true;
        }
        thread.interrupt();
        try {
            thread.join(CLOSE_TIMEOUT_MS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void announce(TopicIdPartition partition, Role role) {
        stopped.remove(partition);
        pending.put(partition, role);
    }

    private void run() {
        try {
            long backoffMs = firstBackoffMs;
            while (awaitNews()) {
                if (send()) {
                    backoffMs = firstBackoffMs;
                } else {
                    pause(backoffMs);
                    backoffMs = Math.min(2 * backoffMs, maxBackoffMs);
                }
            }
        } catch (InterruptedException e) {
            LOG.debug("closed");
        }
    }

    private synchronized boolean awaitNews() throws InterruptedException {
        while (!closed && pending.isEmpty() && stopped.isEmpty()) {
            wait();
        }
        return !closed;
    }

    /** Sends what is pending; returns false if something is left to send again. */
    private boolean send() {
        try {
            Set<TopicIdPartition> gone = nextStopped();
            if (!gone.isEmpty()) {
                sendStopped(gone);
            }
            Map<TopicIdPartition, Role> roles = nextPending();
            return roles.isEmpty() || sendRoles(roles);
        } catch (RuntimeException | Error e) {
            // An Error: a thread of the call cannot be started, for example.
            // Without this thread no partition would ever be ready again.
            LOG.error("sending partitions' roles to RLMM failed; retrying", e);
            return false;
        }
    }

    private void sendStopped(Set<TopicIdPartition> partitions) {
        try {
            sender.onStopPartitions(partitions);
        } catch (StatusException e) {
            LOG.debug("sending RLMM the stop of {} partitions failed", partitions.size(), e);
        }
    }

    private boolean sendRoles(Map<TopicIdPartition, Role> roles) {
        try {
            sender.onPartitionLeadershipChanges(roles);
            roles.forEach(this::took);
            takenChanged.run();
            return true;
        } catch (StatusException e) {
            // One partition that RLMM cannot accept, such as one whose topic id it knows under
            // another name, must not keep it from the others.
            boolean malformed = e.getStatus().getCode() == Status.Code.INVALID_ARGUMENT;
            if (malformed && roles.size() > 1) {
                List<TopicIdPartition> partitions = new ArrayList<>(roles.keySet());
                int middle = partitions.size() / 2;
                boolean first = sendRoles(only(roles, partitions.subList(0, middle)));
                boolean second =
                    sendRoles(only(roles, partitions.subList(middle, partitions.size())));
                return first && second;
            }
            if (malformed) {
                roles.forEach((partition, role) -> refused(partition, role, e.getStatus()));
            }
            return false;
        }
    }

    private synchronized Set<TopicIdPartition> nextStopped() {
        Set<TopicIdPartition> batch = stopped.stream()
            .limit(BATCH_PARTITIONS)
            .collect(Collectors.toSet());
        stopped.removeAll(batch);
        return batch;
    }

    private synchronized Map<TopicIdPartition, Role> nextPending() {
        return only(pending, pending.keySet().stream().limit(BATCH_PARTITIONS).toList());
    }

    private synchronized void took(TopicIdPartition partition, Role role) {
        // A role that came meanwhile is sent next, unless the partition was stopped.
        if (pending.remove(partition, role)) {
            taken.add(partition);
            refused.remove(partition);
        }
    }

    private synchronized void refused(TopicIdPartition partition, Role role, Status status) {
        if (pending.remove(partition, role)) {
            // At the end, so that many of these leave room for others in a batch.
            pending.put(partition, role);
            if (refused.add(partition)) {
                LOG.warn("RLMM refuses {}, which stays without tiered storage: {}",
                    partition, Failures.describe(status));
            }
        }
    }

    private static Map<TopicIdPartition, Role> only(
        Map<TopicIdPartition, Role> roles, List<TopicIdPartition> partitions
    ) {
        Map<TopicIdPartition, Role> some = new LinkedHashMap<>();
        partitions.forEach(partition -> some.put(partition, roles.get(partition)));
        return some;
    }

    /** Sleeps for half to all of the time, so that brokers do not return at one instant. */
    private static void pause(long backoffMs) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(
            ThreadLocalRandom.current().nextLong(backoffMs / 2, backoffMs + 1));
    }
}
