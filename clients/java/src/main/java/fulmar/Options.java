package fulmar;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Consumer;

/** Options of a client; each method returns these options. */
public final class Options {
  private final Map<String, byte[]> values = new LinkedHashMap<>();
  boolean offline;
  Consumer<Event> onEvent = event -> {};

  /** Sets an option of fulmar.h by its name, such as {@code "streams"} to {@code "topic"}. */
  public Options set(String name, Object value) {
    return set(name, value.toString().getBytes(StandardCharsets.UTF_8));
  }

  /** Sets an option of fulmar.h, such as {@code "password"}, to bytes. */
  public Options set(String name, byte[] value) {
    values.put(name, value.clone());
    return this;
  }

  /** Sets the client identifier. */
  public Options clientId(String clientId) {
    return set("client_id", clientId);
  }

  /** Sets user name and password. */
  public Options login(String username, String password) {
    return set("username", username).set("password", password);
  }

  /** Sets the file of authorities to trust, and no others (PEM). */
  public Options caFile(String file) {
    return set("ca_file", file);
  }

  /** Sets how long the server keeps the session without a connection, to the next second. */
  public Options sessionExpiry(Duration time) {
    return set("session_expiry_s", secondsOf(time));
  }

  /** Resumes the session of this client identifier at the first connection, too. */
  public Options resume() {
    return set("clean_start", 0);
  }

  /** Sets the port of TLS over TCP that is tried beside QUIC. */
  public Options fallbackPort(int port) {
    return set("fallback_port", port);
  }

  /** Leaves it to {@link Client#acknowledge} to acknowledge messages at QoS 1. */
  public Options acknowledgeByHand() {
    return set("acknowledge_by_hand", 1);
  }

  /** Sets the message that the server publishes when the client is lost; it has no properties. */
  public Options will(Message will) {
    return set("will_topic", will.topic())
        .set("will_payload", will.payload())
        .set("will_qos", will.qos())
        .set("will_retain", will.retain() ? 1 : 0);
  }

  /** Begins without a connection: what is published waits for one. */
  public Options offline() {
    offline = true;
    return this;
  }

  /** Sets what gets news of the connection, on the client's thread; it must not block. */
  public Options onEvent(Consumer<Event> consumer) {
    onEvent = consumer;
    return this;
  }

  /** The seconds of MQTT, rounded up: a short time is not none. */
  static long secondsOf(Duration time) {
    return time.plusNanos(999_999_999).toSeconds();
  }

  /** Returns the handle of the library's options, which the caller frees. */
  long make(String url) {
    long options = Library.made(Library.FULMAR.fulmar_options_new(Library.text(url, "the URL")));
    try {
      for (Map.Entry<String, byte[]> entry : values.entrySet()) {
        byte[] name = Library.text(entry.getKey(), "the name of an option");
        byte[] value = entry.getValue();
        Library.checked(Library.FULMAR.fulmar_options_set(options, name, value, new Library.Size(value.length)));
      }
    } catch (RuntimeException failure) {
      Library.FULMAR.fulmar_free(options);
      throw failure;
    }
    return options;
  }
}
