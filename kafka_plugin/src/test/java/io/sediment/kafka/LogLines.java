package io.sediment.kafka;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.List;

/** What is logged while something runs. */
final class LogLines {
    private LogLines() {
    }

    interface Body {
        void run() throws Exception;
    }

    static List<String> during(Body body) throws Exception {
        PrintStream stderr = System.err;
        ByteArrayOutputStream log = new ByteArrayOutputStream();
        System.setErr(new PrintStream(log, true));
        try {
            body.run();
        } finally {
            System.setErr(stderr);
        }
        return log.toString().lines().toList();
    }
}
