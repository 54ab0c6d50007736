package org.apache.kafka.common.test.api;

import java.util.List;
import java.util.Set;
import java.util.function.Predicate;
import java.util.stream.Collectors;

import org.apache.kafka.test.TestUtils;

/**
 * Stands before the interface of this name in Kafka's jar, with which each case's threads are
 * counted before and after. Kafka's looks once, at once. gRPC and Netty let theirs go a second or
 * two after the last channel was closed, so this one waits: a thread that ends is no leak.
 */
@FunctionalInterface
public interface DetectThreadLeak {

    /** The threads begun since and still there after 15 seconds. */
    List<Thread> newThreads();

    /** Remembers which threads there are now; looks at none that {@code predicate} leaves out. */
    static DetectThreadLeak of(Predicate<Thread> predicate) {
        Set<Long> before =
                matching(predicate).stream().map(Thread::getId).collect(Collectors.toSet());
        // No second look once there was none: Netty begins one more thread to report that its
        // others have ended.
        return () -> isNoneLeft(before, predicate) ? List.of() : newSince(before, predicate);
    }

    private static boolean isNoneLeft(Set<Long> before, Predicate<Thread> predicate) {
        try {
            TestUtils.waitForCondition(() -> newSince(before, predicate).isEmpty(), "leak");
            return true;
        } catch (AssertionError e) {
            // Kafka's extension asserts, and names the threads.
            return false;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    private static List<Thread> newSince(Set<Long> before, Predicate<Thread> predicate) {
        return matching(predicate).stream()
                .filter(thread -> !before.contains(thread.getId()))
                .toList();
    }

    private static List<Thread> matching(Predicate<Thread> predicate) {
        return Thread.getAllStackTraces().keySet().stream().filter(predicate).toList();
    }
}
