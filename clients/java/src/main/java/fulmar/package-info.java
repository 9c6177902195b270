/**
 * MQTT 5.0 and 3.1.1 over QUIC, TLS, TCP and WebSocket, by libfulmar, which JNA loads from {@code jna.library.path}, the
 * system's folders or the class path.
 */
package fulmar;
