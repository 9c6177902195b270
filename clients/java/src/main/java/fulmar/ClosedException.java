package fulmar;

/** The client is closed. */
public final class ClosedException extends FulmarException {
  private static final long serialVersionUID = 1;

  ClosedException() {
    super("the client is closed");
  }
}
