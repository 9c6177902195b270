package fulmar;

/** The server has refused a request or a connection. */
public final class RefusedException extends FulmarException {
  private static final long serialVersionUID = 1;
  private final int reason;

  RefusedException(int reason, String text) {
    super(text);
    this.reason = reason;
  }

  /** Returns the server's reason code, or -1 where it gave none. */
  public int reason() {
    return reason;
  }
}
