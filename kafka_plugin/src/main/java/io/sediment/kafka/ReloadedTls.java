package io.sediment.kafka;

import io.netty.buffer.ByteBufAllocator;
import io.netty.handler.ssl.ApplicationProtocolNegotiator;
import io.netty.handler.ssl.SslContext;
import java.time.Instant;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLSessionContext;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * TLS whose files may change while it is used: each connection begins with the newest that were in
 * order.
 *
 * <p>Each content of the files has a context of the library of its own. So key and certificate of a
 * connection belong together, and no connection resumes a session under the broker's old identity.
 * With gRPC's AdvancedTlsX509KeyManager in one context both happen.
 */
final class ReloadedTls extends SslContext implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(ReloadedTls.class);
    private static final long POLL_INTERVAL_MS = 1_000;
    private static final String KEPT = "; new connections keep using the files read before";

    private final String service;
    private final TlsFiles files;
    private final ScheduledExecutorService poller;
    private volatile TlsFiles.Content content;
    private volatile SslContext context;
    private Runnable onReload = () -> { };
    private String problem = "";
    private String warned = "";

    /**
     * Reads the files. An outdated certificate is logged and no error: the broker must start.
     *
     * @param service the service of the connections, for messages: "RSM at host:port"
     * @throws TlsFileException if they cannot be used
     */
    ReloadedTls(String service, TlsFiles files) throws TlsFileException {
        this.service = service;
        this.files = files;
        content = files.read();
        content.check();
        context = content.context();
        warnOnce(content.outdated(Instant.now()).orElse(""));
        poller = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "sediment-tls-files");
            thread.setDaemon(true);
            return thread;
        });
    }

    /** Begins to look for changes, about each second. */
    void watch(Runnable onReload) {
        this.onReload = onReload;
        poller.scheduleWithFixedDelay(
            this::poll, POLL_INTERVAL_MS, POLL_INTERVAL_MS, TimeUnit.MILLISECONDS);
    }

    /** Stops looking. Idempotent. */
    @Override
    public void close() {
        poller.shutdownNow();
    }

    /** Checks the files for changes once. */
    void poll() {
        String found;
        try {
            found = reload().orElse("");
        } catch (TlsFileException e) {
            found = e.getMessage() + KEPT;
        } catch (RuntimeException | Error e) {
            // The executor would not poll again.
            found = files.certificate() + ": " + e + KEPT;
        }
        // Key and certificate are written one after the other: a problem is one if it stays.
        if (found.equals(problem)) {
            warnOnce(found);
        }
        problem = found;
    }

    /** Takes the files if they changed; says what is wrong if it does not or they are outdated. */
    private Optional<String> reload() throws TlsFileException {
        TlsFiles.Content fresh = files.read();
        Optional<String> outdated = fresh.outdated(Instant.now());
        if (fresh.equals(content)) {
            return outdated;
        }
        if (outdated.isPresent()) {
            return outdated.map(text -> text + KEPT);
        }
        fresh.check();
        context = fresh.context();
        content = fresh;
        LOG.info("{}: TLS files reloaded; the broker's certificate is valid until {}",
            service, fresh.broker().getNotAfter().toInstant());
        onReload.run();
        return Optional.empty();
    }

    private void warnOnce(String found) {
        if (!found.equals(warned) && !found.isEmpty()) {
            LOG.warn("{}: {}", service, found);
        }
        warned = found;
    }

    @Override
    public boolean isClient() {
        return true;
    }

    @Override
    public List<String> cipherSuites() {
        return context.cipherSuites();
    }

    @Override
    @SuppressWarnings("deprecation") // The type is the superclass's.
    public ApplicationProtocolNegotiator applicationProtocolNegotiator() {
        return context.applicationProtocolNegotiator();
    }

    @Override
    public SSLEngine newEngine(ByteBufAllocator allocator) {
        return context.newEngine(allocator);
    }

    @Override
    public SSLEngine newEngine(ByteBufAllocator allocator, String host, int port) {
        return context.newEngine(allocator, host, port);
    }

    @Override
    public SSLSessionContext sessionContext() {
        return context.sessionContext();
    }
}
