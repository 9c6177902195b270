package fulmar;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;

/**
 * A message to publish, or a received one, with its properties (MQTT 5.0).
 *
 * @param topic the topic
 * @param payload the payload
 * @param qos 0, 1 or 2
 * @param retain whether the server is to keep it, or has kept it
 * @param dup whether a received message may have been received before
 * @param contentType null if it has none
 * @param responseTopic null if it has none
 * @param correlationData null if it has none
 * @param expiry how long it is of use, in seconds of MQTT; null without end
 * @param userProperties pairs that the application defines
 * @param receipt the number by which a received message is acknowledged
 */
public record Message(
    String topic, byte[] payload, int qos, boolean retain, boolean dup, String contentType, String responseTopic,
    byte[] correlationData, Duration expiry, List<UserProperty> userProperties, long receipt) {
  private static final int EXPIRY = 0x02;
  private static final int CONTENT_TYPE = 0x03;
  private static final int RESPONSE_TOPIC = 0x08;
  private static final int CORRELATION_DATA = 0x09;
  private static final int USER_PROPERTY = 0x26;

  /**
   * A pair that the application defines.
   *
   * @param name the name, which may occur several times
   * @param value the value
   */
  public record UserProperty(String name, String value) {}

  /** Begins a message with this topic and payload. */
  public static Builder of(String topic, byte[] payload) {
    return new Builder(topic, payload);
  }

  /** Begins a message with this topic and a text as payload. */
  public static Builder of(String topic, String payload) {
    return new Builder(topic, payload.getBytes(StandardCharsets.UTF_8));
  }

  /** Returns the payload as text. */
  public String text() {
    return new String(payload, StandardCharsets.UTF_8);
  }

  /** Builds a message; each method returns this builder. */
  public static final class Builder {
    private final String topic;
    private final byte[] payload;
    private int qos;
    private boolean retain;
    private boolean dup;
    private String contentType;
    private String responseTopic;
    private byte[] correlationData;
    private Duration expiry;
    private final List<UserProperty> userProperties = new ArrayList<>();
    private long receipt;

    private Builder(String topic, byte[] payload) {
      this.topic = topic;
      this.payload = payload;
    }

    /** Sets the quality of service: 0, 1 or 2. */
    public Builder qos(int qos) {
      this.qos = qos;
      return this;
    }

    /** Sets whether the server is to keep it for later subscribers. */
    public Builder retain(boolean retain) {
      this.retain = retain;
      return this;
    }

    /** Sets the content type. */
    public Builder contentType(String contentType) {
      this.contentType = contentType;
      return this;
    }

    /** Sets the topic of an answer. */
    public Builder responseTopic(String responseTopic) {
      this.responseTopic = responseTopic;
      return this;
    }

    /** Sets what an answer refers to the request by. */
    public Builder correlationData(byte[] correlationData) {
      this.correlationData = correlationData;
      return this;
    }

    /** Sets how long it is of use. */
    public Builder expiry(Duration expiry) {
      this.expiry = expiry;
      return this;
    }

    /** Adds a pair that the application defines. */
    public Builder userProperty(String name, String value) {
      userProperties.add(new UserProperty(name, value));
      return this;
    }

    /** Returns the message. */
    public Message build() {
      return new Message(
          topic, payload, qos, retain, dup, contentType, responseTopic, correlationData, expiry, List.copyOf(userProperties),
          receipt);
    }

    private void add(Library.Property property) {
      byte[] value = bytes(property.value, property.valueSize);
      switch (property.id) {
        case EXPIRY -> expiry = Duration.ofSeconds(Integer.toUnsignedLong(property.number));
        case CONTENT_TYPE -> contentType = new String(value, StandardCharsets.UTF_8);
        case RESPONSE_TOPIC -> responseTopic = new String(value, StandardCharsets.UTF_8);
        case CORRELATION_DATA -> correlationData = value;
        case USER_PROPERTY -> userProperty(
            new String(bytes(property.name, property.nameSize), StandardCharsets.UTF_8), new String(value, StandardCharsets.UTF_8));
        default -> {
          // Of a later library.
        }
      }
    }
  }

  private static byte[] bytes(Pointer at, Library.Size size) {
    return size.intValue() == 0 ? new byte[0] : at.getByteArray(0, size.intValue());
  }

  static Message received(Library.Received event) {
    Builder builder = new Builder(event.topic.getString(0, "UTF-8"), bytes(event.payload, event.payloadSize));
    builder.qos(event.qos).retain(event.retain != 0);
    builder.dup = event.dup != 0;
    builder.receipt = event.receipt;
    long size = new Library.Property().size();
    for (int at = 0; at < event.propertyCount.intValue(); at++) {
      builder.add(new Library.Property(event.properties.share(at * size)));
    }
    return builder.build();
  }

  /** Returns about how many bytes it has. */
  long size() {
    long properties = given().stream().mapToLong(property -> property.name.length() + property.value.length).sum();
    return topic.length() + payload.length + properties;
  }

  /** Calls with the message in the form of the library, whose memory is freed afterwards. */
  int publish(long client, long token, long timeout) {
    if (qos < 0 || qos > 2) {
      throw new IllegalArgumentException("QoS is 0, 1 or 2");
    }
    List<Memory> memory = new ArrayList<>();
    try {
      Library.Publication c = new Library.Publication();
      c.topic = copy(Library.text(topic, "the topic"), memory);
      c.payload = copy(payload, memory);
      c.payloadSize = new Library.Size(payload.length);
      c.qos = (byte) qos;
      c.retain = (byte) (retain ? 1 : 0);
      List<Given> given = given();
      if (!given.isEmpty()) {
        Library.Property[] list = (Library.Property[]) new Library.Property().toArray(given.size());
        for (int at = 0; at < list.length; at++) {
          given.get(at).into(list[at], memory);
        }
        c.properties = list[0].getPointer();
        c.propertyCount = new Library.Size(list.length);
      }
      return Library.FULMAR.fulmar_publish(client, c, token, timeout);
    } finally {
      memory.forEach(Memory::close);
    }
  }

  private List<Given> given() {
    List<Given> given = new ArrayList<>();
    if (expiry != null) {
      given.add(new Given(EXPIRY, "", new byte[0], (int) Math.min(Options.secondsOf(expiry), 0xFFFF_FFFFL)));
    }
    if (contentType != null) {
      given.add(new Given(CONTENT_TYPE, "", contentType.getBytes(StandardCharsets.UTF_8), 0));
    }
    if (responseTopic != null) {
      given.add(new Given(RESPONSE_TOPIC, "", responseTopic.getBytes(StandardCharsets.UTF_8), 0));
    }
    if (correlationData != null) {
      given.add(new Given(CORRELATION_DATA, "", correlationData, 0));
    }
    for (UserProperty pair : userProperties) {
      given.add(new Given(USER_PROPERTY, pair.name, pair.value.getBytes(StandardCharsets.UTF_8), 0));
    }
    return given;
  }

  private record Given(int id, String name, byte[] value, int number) {
    void into(Library.Property property, List<Memory> memory) {
      byte[] encoded = name.getBytes(StandardCharsets.UTF_8);
      property.name = copy(encoded, memory);
      property.nameSize = new Library.Size(encoded.length);
      property.value = copy(value, memory);
      property.valueSize = new Library.Size(value.length);
      property.number = number;
      property.id = (byte) id;
      property.write();
    }
  }

  private static Pointer copy(byte[] bytes, List<Memory> memory) {
    if (bytes.length == 0) {
      return null;
    }
    Memory copied = new Memory(bytes.length);
    memory.add(copied);
    copied.write(0, bytes, 0, bytes.length);
    return copied;
  }
}
