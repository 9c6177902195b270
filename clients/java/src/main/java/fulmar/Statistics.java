package fulmar;

import java.time.Duration;
import java.time.temporal.ChronoUnit;

/**
 * Statistics of the connection's path; all but the transport of QUIC only.
 *
 * @param transport the protocol below MQTT
 * @param earlyData whether CONNECT was sent with the first packets
 * @param rtt the round-trip time
 * @param lostPackets packets that were lost on the way to the server
 * @param sentBytes bytes sent
 * @param receivedBytes bytes received
 * @param migrations changes of the client's address
 * @param serverMoves changes of the server's address
 */
public record Statistics(
    Transport transport, boolean earlyData, Duration rtt, long lostPackets, long sentBytes, long receivedBytes, int migrations,
    int serverMoves) {
  static Statistics of(Library.Path path) {
    return new Statistics(
        Transport.values()[path.transport], path.earlyData != 0, Duration.of(path.rttUs, ChronoUnit.MICROS), path.lostPackets,
        path.sentBytes, path.receivedBytes, path.migrations, path.serverMoves);
  }
}
