// Kafka Streams, each message of a topic to another one, exactly once: what one would run instead of a pipeline.
// java -cp JARS Streams STREAMS.properties INPUT OUTPUT
// Prints `begun` with the first message: the start of the machine takes seconds, and is not what is compared. The
// harness checks when all of it is committed, and then ends its input; it prints `transactions N`, and ends.

import java.io.FileReader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;

public class Streams {
    static volatile boolean begun = false;

    public static void main(String[] args) throws Exception {
        var properties = new Properties();
        try (var file = new FileReader(args[0], StandardCharsets.UTF_8)) {
            properties.load(file);
        }
        var bytes = Serdes.ByteArray();
        var builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(bytes, bytes)).mapValues(Streams::map).to(args[2], Produced.with(bytes, bytes));
        var streams = new KafkaStreams(builder.build(), properties);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        while (System.in.read() >= 0) {
            // Nothing is said on it; it ends with the harness.
        }
        // Of the thread: it commits all of its tasks in one transaction.
        long transactions = 0;
        for (var metric : streams.metrics().values()) {
            var name = metric.metricName();
            if (name.name().equals("commit-total") && name.group().equals("stream-thread-metrics")) {
                transactions += ((Number) metric.metricValue()).longValue();
            }
        }
        System.out.println("transactions " + transactions);
        Runtime.getRuntime().halt(0);
    }

    // Only Streams' one thread sets it.
    static byte[] map(byte[] value) {
        if (!begun) {
            begun = true;
            System.out.println("begun");
        }
        return value;
    }
}
