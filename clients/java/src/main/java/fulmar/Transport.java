package fulmar;

/** A protocol below MQTT. */
public enum Transport {
  TCP("mqtt"),
  TLS("mqtts"),
  QUIC("quic"),
  WEBSOCKET("ws"),
  SECURE_WEBSOCKET("wss");

  private final String scheme;

  Transport(String scheme) {
    this.scheme = scheme;
  }

  /** Returns the scheme of its URLs. */
  public String scheme() {
    return scheme;
  }
}
