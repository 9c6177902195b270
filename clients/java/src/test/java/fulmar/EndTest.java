package fulmar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;

import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;

/** Ends of a client without a server: by the application, by its handler of events, and of an attempt to connect. */
class EndTest {
  private static final Duration PATIENCE = Duration.ofSeconds(30);

  /** Nothing listens at port 1 of loopback. */
  private static final String NOWHERE = "mqtt://127.0.0.1:1";

  private static Options offline() {
    return new Options().offline().set("drain_timeout_ms", 0);
  }

  private static void assertClosed(CompletableFuture<?> result) {
    assertInstanceOf(ClosedException.class, assertThrows(CompletionException.class, result::join).getCause());
  }

  @Test
  void anErrorOfTheHandlerIsToldAndEndsNothing() {
    CompletableFuture<Throwable> told = new CompletableFuture<>();
    Thread.setDefaultUncaughtExceptionHandler((thread, failure) -> told.complete(failure));
    AssertionError wrong = new AssertionError("wrong");
    Client client =
        Client.connect(
                NOWHERE,
                offline()
                    .onEvent(
                        event -> {
                          throw wrong;
                        }))
            .join();
    assertTimeoutPreemptively(
        PATIENCE,
        () -> {
          assertEquals(wrong, told.join());
          CompletableFuture<Void> published = client.publish(Message.of("a", "m").qos(1).build());
          client.close();
          assertClosed(published);
        });
  }

  @Test
  void theHandlerMayCloseTheClient() {
    CompletableFuture<Client> made = new CompletableFuture<>();
    Client client = Client.connect(NOWHERE, offline().onEvent(event -> made.join().close())).join();
    CompletableFuture<Void> published = client.publish(Message.of("a", "m").qos(1).build());
    made.complete(client);
    assertTimeoutPreemptively(
        PATIENCE,
        () -> {
          assertClosed(published);
          assertThrows(ClosedException.class, client::receive);
          client.close();
        });
  }

  @Test
  void anAttemptThatIsCancelledEnds() {
    assertTimeoutPreemptively(
        PATIENCE,
        () -> {
          try (ServerSocket silent = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            CompletableFuture<Client> attempt =
                Client.connect("mqtt://127.0.0.1:" + silent.getLocalPort(), new Options().set("connect_timeout_ms", 600_000));
            try (Socket connection = silent.accept()) {
              attempt.cancel(true);
              // CONNECT, and then the end.
              connection.getInputStream().readAllBytes();
            }
          }
        });
  }

  @Test
  void aShortTimeIsNotNone() {
    assertEquals(1, Options.secondsOf(Duration.ofNanos(1)));
    assertEquals(1, Options.secondsOf(Duration.ofSeconds(1)));
    assertEquals(0, Options.secondsOf(Duration.ZERO));
  }
}
