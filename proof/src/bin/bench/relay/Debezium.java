// Debezium's engine with its outbox event router, and a plain producer behind it: what one would run instead of a relay.
// java -cp JARS Debezium ENGINE.properties PRODUCER.properties EVENTS
// Prints `relayed EVENTS SECONDS` once the broker has confirmed that many, counted from when the first one came: the start of
// the engine takes seconds, and is not what is compared.

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.FileReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.source.SourceRecord;

public class Debezium {
    public static void main(String[] args) throws Exception {
        Properties engine = read(args[0]);
        long events = Long.parseLong(args[2]);
        var producer =
            new KafkaProducer<byte[], byte[]>(read(args[1]), new ByteArraySerializer(), new ByteArraySerializer());
        var failure = new AtomicReference<Throwable>();
        var done = new CountDownLatch(1);
        var begin = new AtomicLong();
        var consumer = new DebeziumEngine.ChangeConsumer<RecordChangeEvent<SourceRecord>>() {
            long sent = 0;

            @Override
            public void handleBatch(
                List<RecordChangeEvent<SourceRecord>> batch,
                DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) throws InterruptedException {
                begin.compareAndSet(0, System.nanoTime());
                for (var event : batch) {
                    SourceRecord from = event.record();
                    if (from.value() != null && from.key() instanceof String key) {
                        var record = new ProducerRecord<byte[], byte[]>(from.topic(), text(key), bytes(from.value()));
                        for (Header header : from.headers()) {
                            record.headers().add(header.key(), text(String.valueOf(header.value())));
                        }
                        producer.send(record, (meta, error) -> {
                            if (error != null) {
                                failure.compareAndSet(null, error);
                            }
                        });
                        sent++;
                    }
                }
                producer.flush();
                if (failure.get() != null) {
                    done.countDown();
                    throw new IllegalStateException(failure.get());
                }
                for (var event : batch) {
                    committer.markProcessed(event);
                }
                committer.markBatchFinished();
                if (sent >= events) {
                    done.countDown();
                }
            }
        };
        var running = DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(engine)
            .using((success, message, error) -> {
                if (!success) {
                    failure.compareAndSet(null, error != null ? error : new IllegalStateException(message));
                }
                done.countDown();
            })
            .notifying(consumer)
            .build();
        var thread = Executors.newSingleThreadExecutor();
        thread.execute(running);
        done.await();
        double seconds = (System.nanoTime() - begin.get()) / 1e9;
        if (failure.get() != null) {
            failure.get().printStackTrace();
            System.exit(1);
        }
        System.out.println("relayed " + events + " " + seconds);
        // The harness measures its memory now, and then ends it.
        System.in.read();
        Runtime.getRuntime().halt(0);
    }

    static Properties read(String path) throws Exception {
        var properties = new Properties();
        try (var file = new FileReader(path, StandardCharsets.UTF_8)) {
            properties.load(file);
        }
        return properties;
    }

    static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] bytes(Object value) {
        if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return bytes;
        }
        return value instanceof byte[] bytes ? bytes : text(String.valueOf(value));
    }
}
