package fulmar;

/** A failure of a client; wrong arguments are an {@link IllegalArgumentException}. */
public class FulmarException extends RuntimeException {
  private static final long serialVersionUID = 1;

  FulmarException(String text) {
    super(text);
  }
}
