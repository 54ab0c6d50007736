package io.sediment.kafka;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLContext;

/** A store of logs over HTTP or HTTPS: ranges of them, by URLs with a secret. */
final class ObjectStore implements AutoCloseable {
    static final String SECRET = "X-Amz-Signature=0badcafe";
    private static final Pattern RANGE = Pattern.compile("bytes=(\\d+)-(\\d+)");

    private final String scheme;
    private final HttpServer server;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final Map<String, byte[]> logs = new ConcurrentHashMap<>();
    private final List<Integer> starts = new CopyOnWriteArrayList<>();
    private volatile int status = 206;
    private volatile int cutAfterBytes = Integer.MAX_VALUE;
    private volatile CountDownLatch released = new CountDownLatch(0);

    ObjectStore() {
        this(Optional.empty());
    }

    /** With TLS, or plaintext. */
    ObjectStore(Optional<SSLContext> tls) {
        scheme = tls.isPresent() ? "https" : "http";
        try {
            server = listening(tls);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        server.createContext("/", this::answer);
        server.setExecutor(threads);
        server.start();
    }

    String host() {
        return "127.0.0.1:" + server.getAddress().getPort();
    }

    /** Stores a log; returns its URL. */
    String put(String name, byte[] log) {
        logs.put("/" + name, log);
        return scheme + "://" + host() + "/" + name + "?" + SECRET;
    }

    /** Answers all that follows with a status; 206 is a range. */
    void answerWith(int newStatus) {
        status = newStatus;
    }

    /** Closes each connection that follows after so many bytes of an answer. */
    void cutAfter(int bytes) {
        cutAfterBytes = bytes;
    }

    /** Answers nothing from now on, until it is closed. */
    void standStill() {
        released = new CountDownLatch(1);
    }

    /** The first positions of the ranges that were asked for so far, in order. */
    List<Integer> starts() {
        return starts;
    }

    @Override
    public void close() {
        released.countDown();
        server.stop(0);
        threads.shutdownNow();
    }

    private static HttpServer listening(Optional<SSLContext> tls) throws IOException {
        InetSocketAddress address = new InetSocketAddress(InetAddress.getLoopbackAddress(), 0);
        if (tls.isEmpty()) {
            return HttpServer.create(address, 0);
        }
        HttpsServer made = HttpsServer.create(address, 0);
        made.setHttpsConfigurator(new HttpsConfigurator(tls.get()));
        return made;
    }

    private void answer(HttpExchange exchange) throws IOException {
        try (exchange) {
            Matcher range = RANGE.matcher(exchange.getRequestHeaders().getFirst("Range"));
            byte[] log = logs.get(exchange.getRequestURI().getPath());
            if (!range.matches() || log == null) {
                throw new IOException("a request that the plugin does not send");
            }
            int start = Integer.parseInt(range.group(1));
            starts.add(start);
            await();
            if (status != 206) {
                refuse(exchange);
                return;
            }
            byte[] body = Arrays.copyOfRange(log, start, Integer.parseInt(range.group(2)) + 1);
            exchange.sendResponseHeaders(206, body.length);
            exchange.getResponseBody().write(body, 0, Math.min(body.length, cutAfterBytes));
        }
    }

    private void await() {
        try {
            released.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void refuse(HttpExchange exchange) throws IOException {
        byte[] body = ("<Error><Code>Said</Code>" + exchange.getRequestURI() + "</Error>")
            .getBytes(StandardCharsets.UTF_8);
        exchange.getResponseHeaders().add("Location", "http://" + host() + "/other?" + SECRET);
        exchange.sendResponseHeaders(status, body.length);
        exchange.getResponseBody().write(body);
    }
}
