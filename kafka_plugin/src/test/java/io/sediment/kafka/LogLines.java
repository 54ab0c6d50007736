package io.sediment.kafka;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.List;
import java.util.function.Supplier;

/** What is logged while something runs. */
final class LogLines {
    private LogLines() {
    }

    interface Body {
        void run() throws Exception;
    }

    /** Something that looks at what has been logged so far. */
    interface Watch {
        void run(Supplier<List<String>> lines) throws Exception;
    }

    static List<String> during(Body body) throws Exception {
        return during(lines -> body.run());
    }

    static List<String> during(Watch body) throws Exception {
        PrintStream stderr = System.err;
        ByteArrayOutputStream log = new ByteArrayOutputStream();
        System.setErr(new PrintStream(log, true));
        try {
            body.run(() -> log.toString().lines().toList());
        } finally {
            System.setErr(stderr);
        }
        return log.toString().lines().toList();
    }
}
