package io.sediment.kafka;

import java.util.Collection;
import java.util.Comparator;
import java.util.Optional;

/** Finds what an operator may have meant. */
final class Spelling {
    private static final int MAX_DISTANCE = 3;

    private Spelling() {
    }

    /** The known name that differs in the fewest letters, at most three. */
    static Optional<String> closest(String name, Collection<String> known) {
        return known.stream()
            .min(Comparator.comparingInt((String each) -> distance(name, each))
                .thenComparing(Comparator.naturalOrder()))
            .filter(each -> distance(name, each) <= MAX_DISTANCE);
    }

    /** Letters to insert, delete or replace (Levenshtein). */
    private static int distance(String from, String to) {
        int[] last = new int[to.length() + 1];
        for (int j = 0; j <= to.length(); j++) {
            last[j] = j;
        }
        for (int i = 1; i <= from.length(); i++) {
            int[] row = new int[to.length() + 1];
            row[0] = i;
            for (int j = 1; j <= to.length(); j++) {
                int replaced = last[j - 1] + (from.charAt(i - 1) == to.charAt(j - 1) ? 0 : 1);
                row[j] = Math.min(replaced, 1 + Math.min(last[j], row[j - 1]));
            }
            last = row;
        }
        return last[to.length()];
    }
}
