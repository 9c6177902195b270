package fulmar;

/** The client has given up: the server ended it for good, or it was not to connect again. */
public final class DisconnectedException extends FulmarException {
  private static final long serialVersionUID = 1;
  private final int reason;

  DisconnectedException(int reason, String text) {
    super(text);
    this.reason = reason;
  }

  /** Returns the server's reason code, or -1 where it gave none. */
  public int reason() {
    return reason;
  }
}
