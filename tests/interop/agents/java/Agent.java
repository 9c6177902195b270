import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.annotations.SerializedName;
import fulmar.Client;
import fulmar.ClosedException;
import fulmar.DisconnectedException;
import fulmar.Message;
import fulmar.Options;
import fulmar.RefusedException;
import fulmar.Statistics;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;

/** The agent of Java for client_scenarios.py, which describes what it reads and answers. */
final class Agent {
  /** A message as JSON has it. */
  static class Shown {
    String topic;
    String payload;
    int qos;
    boolean retain;
    boolean dup;
    @SerializedName("content_type") String contentType;
    @SerializedName("response_topic") String responseTopic;
    @SerializedName("correlation_data") String correlationData;
    @SerializedName("expiry_s") Long expiry;
    @SerializedName("user_properties") List<List<String>> userProperties;

    Message message() {
      Message.Builder builder = Message.of(topic, Base64.getDecoder().decode(payload)).qos(qos).retain(retain);
      builder.contentType(contentType).responseTopic(responseTopic);
      if (correlationData != null) {
        builder.correlationData(Base64.getDecoder().decode(correlationData));
      }
      if (expiry != null) {
        builder.expiry(Duration.ofSeconds(expiry));
      }
      if (userProperties != null) {
        userProperties.forEach(pair -> builder.userProperty(pair.get(0), pair.get(1)));
      }
      return builder.build();
    }

    static Shown of(Message message) {
      Shown shown = new Shown();
      shown.topic = message.topic();
      shown.payload = Base64.getEncoder().encodeToString(message.payload());
      shown.qos = message.qos();
      shown.retain = message.retain();
      shown.dup = message.dup();
      shown.contentType = message.contentType();
      shown.responseTopic = message.responseTopic();
      if (message.correlationData() != null) {
        shown.correlationData = Base64.getEncoder().encodeToString(message.correlationData());
      }
      shown.expiry = message.expiry() == null ? null : message.expiry().toSeconds();
      if (!message.userProperties().isEmpty()) {
        shown.userProperties = message.userProperties().stream().map(pair -> List.of(pair.name(), pair.value())).toList();
      }
      return shown;
    }
  }

  /** A request. */
  static final class Request extends Shown {
    int id;
    @SerializedName("do") String what;
    String client;
    String url;
    JsonObject options;
    String filter;
    int first;
    int count;
    int message;
  }

  private static final Gson GSON = new Gson();
  private final Map<String, Client> clients = new ConcurrentHashMap<>();
  private final Map<String, List<Message>> last = new ConcurrentHashMap<>();

  private static Options options(JsonObject given) {
    Options options = new Options();
    for (String name : given.keySet()) {
      switch (name) {
        case "offline" -> options.offline();
        case "resume" -> options.resume();
        case "will" -> options.will(GSON.fromJson(given.get("will"), Shown.class).message());
        case "more" -> given.getAsJsonObject("more").asMap().forEach((key, value) -> options.set(key, value.getAsString()));
        case "acknowledge_by_hand" -> options.acknowledgeByHand();
        default -> options.set(name, given.get(name).getAsString());
      }
    }
    return options;
  }

  /** Begins a request, and returns what waits for its end. */
  private Callable<Object> begin(Request request) {
    Client client = request.client == null ? null : clients.get(request.client);
    switch (request.what) {
      case "connect":
        return () -> {
          clients.put(request.client, Client.connect(request.url, options(request.options)).join());
          return null;
        };
      case "publish":
        return () -> client.publish(request.message()).join();
      case "publish_numbers":
        CompletableFuture<?>[] all =
            IntStream.range(request.first, request.first + request.count)
                .mapToObj(number -> client.publish(Message.of(request.topic, "" + number).qos(request.qos).build()))
                .toArray(CompletableFuture<?>[]::new);
        return () -> CompletableFuture.allOf(all).join();
      case "subscribe":
        return () -> client.subscribe(request.filter, request.qos).join();
      case "unsubscribe":
        return () -> client.unsubscribe(request.filter).join();
      case "receive":
        return () -> {
          List<Message> messages = new ArrayList<>();
          while (messages.size() < request.count) {
            messages.add(client.receive());
          }
          last.put(request.client, messages);
          return messages.stream().map(Shown::of).toList();
        };
      case "acknowledge":
        return done(() -> client.acknowledge(last.get(request.client).get(request.message)));
      case "network_changed":
        return done(client::networkChanged);
      case "statistics":
        return () -> {
          Statistics found = client.statistics();
          return Map.of(
              "transport", found.transport().scheme(), "migrations", found.migrations(), "rtt_us", found.rtt().toNanos() / 1000);
        };
      case "close":
        return done(client::close);
      default:
        throw new IllegalStateException(request.what);
    }
  }

  private static Callable<Object> done(Runnable work) {
    return () -> {
      work.run();
      return null;
    };
  }

  private static Map<String, Object> failure(Throwable thrown) {
    Throwable failure = thrown instanceof CompletionException ? thrown.getCause() : thrown;
    String kind = "other";
    int reason = -1;
    if (failure instanceof RefusedException refused) {
      kind = "refused";
      reason = refused.reason();
    } else if (failure instanceof DisconnectedException disconnected) {
      kind = "disconnected";
      reason = disconnected.reason();
    } else if (failure instanceof ClosedException) {
      kind = "closed";
    } else if (failure instanceof IllegalArgumentException) {
      kind = "invalid";
    }
    return Map.of("kind", kind, "reason", reason, "text", "" + failure.getMessage());
  }

  private static synchronized void answer(int id, String name, Object value) {
    JsonObject line = new JsonObject();
    line.addProperty("id", id);
    line.add(name, GSON.toJsonTree(value));
    System.out.println(line);
  }

  public static void main(String[] words) throws Exception {
    Agent agent = new Agent();
    ExecutorService executor = Executors.newCachedThreadPool();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      Request request = GSON.fromJson(line, Request.class);
      Callable<Object> begun;
      try {
        begun = agent.begin(request);
      } catch (RuntimeException failure) {
        answer(request.id, "error", failure(failure));
        continue;
      }
      executor.execute(
          () -> {
            try {
              answer(request.id, "result", begun.call());
            } catch (Exception failure) {
              answer(request.id, "error", failure(failure));
            }
          });
    }
    executor.shutdown();
    boolean left = Thread.getAllStackTraces().keySet().stream().anyMatch(thread -> thread.isAlive() && thread.getName().equals("fulmar"));
    System.exit(left ? 3 : 0);
  }
}
