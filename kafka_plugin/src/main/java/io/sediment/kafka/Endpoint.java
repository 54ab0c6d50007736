package io.sediment.kafka;

import java.net.URI;
import java.net.URISyntaxException;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Where a service listens: {@code host:port}, an IPv6 address in brackets.
 *
 * @param host name or address, an IPv6 address without its brackets
 * @param port 1 to 65535
 */
record Endpoint(String host, int port) {
    private static final int MAX_PORT = 65_535;

    /** @throws IllegalArgumentException if the text is anything but {@code host:port} */
    static Endpoint parse(String text) {
        URI uri;
        try {
            uri = new URI("sediment://" + text).parseServerAuthority();
        } catch (URISyntaxException e) {
            throw malformed(text);
        }
        boolean onlyHostAndPort = uri.getRawUserInfo() == null
            && uri.getRawPath().isEmpty()
            && uri.getRawQuery() == null
            && uri.getRawFragment() == null;
        boolean portInRange = uri.getPort() >= 1 && uri.getPort() <= MAX_PORT;
        if (uri.getHost() == null || !portInRange || !onlyHostAndPort) {
            throw malformed(text);
        }
        return new Endpoint(uri.getHost().replaceAll("[\\[\\]]", ""), uri.getPort());
    }

    /**
     * Endpoints with commas between them, at least one.
     *
     * @throws IllegalArgumentException if one is malformed or named twice
     */
    static List<Endpoint> parseAll(String text) {
        List<Endpoint> endpoints =
            Stream.of(text.split(",", -1)).map(part -> parse(part.strip())).toList();
        if (endpoints.stream().distinct().count() < endpoints.size()) {
            throw new IllegalArgumentException("'" + text + "' names an endpoint twice");
        }
        return endpoints;
    }

    /** The text that {@link #parseAll} reads. */
    static String join(List<Endpoint> endpoints) {
        return endpoints.stream().map(Endpoint::toString).collect(Collectors.joining(","));
    }

    private static IllegalArgumentException malformed(String text) {
        return new IllegalArgumentException(
            "'" + text + "' is not host:port, such as rsm.example.com:9090 or [2001:db8::1]:9090");
    }

    @Override
    public String toString() {
        return host.contains(":") ? "[" + host + "]:" + port : host + ":" + port;
    }
}
