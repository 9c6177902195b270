package fulmar;

import java.time.Duration;

/**
 * News of the connection.
 *
 * @param kind what has happened
 * @param reason the server's reason code, or -1
 * @param text the address, or why the connection was lost
 * @param transport of a new connection
 * @param sessionPresent whether a new connection has resumed the session
 * @param retryIn when the client tries again; null if it does not
 */
public record Event(Kind kind, int reason, String text, Transport transport, boolean sessionPresent, Duration retryIn) {
  /** Kinds of news. */
  public enum Kind {
    /** The server has accepted the client. */
    CONNECTED,
    /** The connection has ended, or an attempt has failed. */
    LOST,
    /** QUIC goes on from another local address. */
    MIGRATED,
    /** The server has lost the session: publications at QoS 2 may arrive twice. */
    MAY_REPEAT
  }

  static Event of(Kind kind, Library.Received event) {
    Duration retryIn = event.retryIn < 0 ? null : Duration.ofMillis(event.retryIn);
    return new Event(
        kind, event.reason, event.textOfEvent(), Transport.values()[event.transport], event.sessionPresent != 0, retryIn);
  }
}
