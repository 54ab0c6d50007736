package org.apache.kafka.server.log.remote.metadata.storage;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.List;

import org.junit.jupiter.api.Test;

/** What makes a result of Kafka's tests here one of the plugin. */
class PluginInTopicBasedClothesAcceptance {

    @Test
    void nothingPublicIsInherited() {
        List<Method> inherited = Arrays.stream(PluginInTopicBasedClothes.class.getMethods())
                .filter(method -> method.getDeclaringClass() != Object.class)
                .filter(method -> method.getDeclaringClass() != PluginInTopicBasedClothes.class)
                .toList();
        assertEquals(List.of(), inherited);
    }
}
