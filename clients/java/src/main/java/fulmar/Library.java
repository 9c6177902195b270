package fulmar;

import com.sun.jna.IntegerType;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.Structure;
import java.nio.charset.StandardCharsets;
import java.util.Map;

/** The functions of fulmar.h, which describes them. */
interface Library extends com.sun.jna.Library {
  int TIMEOUT = -2;
  int CLOSED = -3;
  int INVALID = -1;

  /** Loaded from jna.library.path, the system's folders, or the class path. */
  Library FULMAR = Native.load("fulmar", Library.class, Map.of(OPTION_STRING_ENCODING, "UTF-8"));

  String fulmar_error();

  long fulmar_options_new(byte[] url);

  int fulmar_options_set(long options, byte[] name, byte[] value, Size size);

  int fulmar_free(long handle);

  long fulmar_connect(long options);

  int fulmar_publish(long client, Publication message, long token, long timeout);

  int fulmar_subscribe(long client, byte[] filter, byte options, long token);

  int fulmar_unsubscribe(long client, byte[] filter, long token);

  int fulmar_next(long client, Received event, long timeout);

  int fulmar_acknowledge(long client, long receipt);

  int fulmar_network_changed(long client);

  int fulmar_path(long client, Path path);

  int fulmar_disconnect(long client, long timeout);

  /** The answer of a function that fails with a negative number. */
  static int checked(int answer) {
    if (answer < 0) {
      throw failure(answer);
    }
    return answer;
  }

  /** The handle of a function that fails with 0. */
  static long made(long handle) {
    if (handle == 0) {
      throw failure(INVALID);
    }
    return handle;
  }

  private static RuntimeException failure(int code) {
    String text = FULMAR.fulmar_error();
    return switch (code) {
      case INVALID -> new IllegalArgumentException(text);
      case CLOSED -> new ClosedException();
      default -> new FulmarException(text);
    };
  }

  /** For C, where a text ends at a zero byte. */
  static byte[] text(String text, String what) {
    if (text.indexOf('\0') >= 0) {
      throw new IllegalArgumentException(what + " has a zero byte");
    }
    return (text + '\0').getBytes(StandardCharsets.UTF_8);
  }

  /** A size_t. */
  final class Size extends IntegerType {
    private static final long serialVersionUID = 1;

    public Size() {
      this(0);
    }

    Size(long value) {
      super(Native.SIZE_T_SIZE, value, true);
    }
  }

  /** A property of a message. */
  @Structure.FieldOrder({"name", "nameSize", "value", "valueSize", "number", "id"})
  final class Property extends Structure {
    public Pointer name;
    public Size nameSize = new Size();
    public Pointer value;
    public Size valueSize = new Size();
    public int number;
    public byte id;

    public Property() {}

    Property(Pointer at) {
      super(at);
      read();
    }
  }

  /** A message to publish. */
  @Structure.FieldOrder({"topic", "payload", "payloadSize", "properties", "propertyCount", "qos", "retain"})
  final class Publication extends Structure {
    public Pointer topic;
    public Pointer payload;
    public Size payloadSize = new Size();
    public Pointer properties;
    public Size propertyCount = new Size();
    public byte qos;
    public byte retain;
  }

  /** An event. */
  @Structure.FieldOrder({
    "token", "receipt", "retryIn", "topic", "payload", "payloadSize", "properties", "propertyCount", "text", "kind", "reason",
    "qos", "transport", "retain", "dup", "sessionPresent", "earlyData"
  })
  final class Received extends Structure {
    public long token;
    public long receipt;
    public long retryIn;
    public Pointer topic;
    public Pointer payload;
    public Size payloadSize = new Size();
    public Pointer properties;
    public Size propertyCount = new Size();
    public Pointer text;
    public int kind;
    public int reason;
    public byte qos;
    public byte transport;
    public byte retain;
    public byte dup;
    public byte sessionPresent;
    public byte earlyData;

    String textOfEvent() {
      return text.getString(0, "UTF-8");
    }
  }

  /** Statistics of a path. */
  @Structure.FieldOrder({
    "rttUs", "lostPackets", "sentBytes", "receivedBytes", "migrations", "serverMoves", "transport", "earlyData"
  })
  final class Path extends Structure {
    public long rttUs;
    public long lostPackets;
    public long sentBytes;
    public long receivedBytes;
    public int migrations;
    public int serverMoves;
    public byte transport;
    public byte earlyData;
  }
}
