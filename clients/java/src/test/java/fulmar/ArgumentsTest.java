package fulmar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;

/** Errors of calls, without a network: a client that has no connection. */
class ArgumentsTest {
  private static Options offline() {
    return new Options().offline().set("drain_timeout_ms", 0);
  }

  /** Nothing listens at port 1 of loopback. */
  private static Client client() {
    return Client.connect("mqtt://127.0.0.1:1", offline()).join();
  }

  private static void assertInvalid(String words, Runnable call) {
    String text = assertThrows(IllegalArgumentException.class, call::run).getMessage();
    assertTrue(text.contains(words), text);
  }

  @Test
  void aWrongUrlOrOptionIsAnError() {
    assertInvalid("SCHEME://HOST", () -> Client.connect("localhost"));
    assertInvalid("zero byte", () -> Client.connect("mqtt://a\0b"));
    assertInvalid("no option", () -> Client.connect("mqtt://127.0.0.1:1", offline().set("no_such", 1)));
    assertInvalid("number", () -> Client.connect("mqtt://127.0.0.1:1", offline().set("keep_alive_s", "x")));
  }

  @Test
  void aWrongMessageOrFilterIsAnError() {
    try (Client client = client()) {
      assertInvalid("", () -> client.publish(Message.of("a/#", "m").build()));
      assertInvalid("zero byte", () -> client.publish(Message.of("a\0b", "m").build()));
      assertInvalid("QoS", () -> client.publish(Message.of("a", "m").qos(3).build()));
      assertInvalid("", () -> client.publish(Message.of("a", "m").contentType("x".repeat(70_000)).build()));
      assertInvalid("", () -> client.subscribe("a#", 0));
      assertInvalid("", () -> client.subscribe("a", 3));
    }
  }

  @Test
  void whatWaitsEndsWithTheClient() throws InterruptedException {
    Client client = client();
    CompletableFuture<Void> published = client.publish(Message.of("a", "m").qos(1).build());
    assertEquals(null, client.receive(Duration.ofMillis(1)));
    client.close();
    Throwable failure = assertThrows(CompletionException.class, published::join).getCause();
    assertInstanceOf(ClosedException.class, failure);
    assertThrows(ClosedException.class, client::receive);
    assertThrows(ClosedException.class, () -> client.publish(Message.of("a", "m").build()));
    client.close();
  }
}
