package fulmar;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.HashMap;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongToIntFunction;

/**
 * A client of one broker. It reconnects by itself, keeps what is queued meanwhile, and subscribes again if the server has
 * lost the session. Its methods may be called on any thread; futures complete on the common pool.
 */
public final class Client implements AutoCloseable {
  /** Messages that wait for the application before the client reads no further ones, unless a result may stand behind them. */
  private static final int MAX_MESSAGES = 1000;

  /** Messages that may wait, and their bytes, whatever stands behind them. */
  private static final int MAX_BACKLOG = 10_000;

  private static final long MAX_BACKLOG_BYTES = 64 << 20;

  /** Time after which a call that waits for room in the queue looks whether its thread was interrupted, in ms. */
  private static final long INTERRUPT_POLL_MS = 100;

  private final long handle;
  private final Options options;
  private final Thread reader = new Thread(this::read, "fulmar");
  private final CompletableFuture<Void> connected = new CompletableFuture<>();
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition changed = lock.newCondition();
  // With the lock:
  private final Queue<Message> messages = new ArrayDeque<>();
  private long messageBytes;
  private final Map<Long, CompletableFuture<Integer>> waiting = new HashMap<>();
  private long lastToken;
  private boolean closing;
  private FulmarException ended;

  private Client(String url, Options options) {
    this.options = options;
    long made = options.make(url);
    try {
      handle = Library.made(Library.FULMAR.fulmar_connect(made));
    } finally {
      Library.FULMAR.fulmar_free(made);
    }
    reader.setDaemon(true);
    reader.start();
  }

  /** Connects with the library's options. */
  public static CompletableFuture<Client> connect(String url) {
    return connect(url, new Options());
  }

  /**
   * Starts a client. The future has it when the server has accepted it, at once with {@link Options#offline()}, or fails with
   * {@link RefusedException} if the first attempt does. Cancelling the future, or a timeout of it, ends the attempt.
   *
   * @throws IllegalArgumentException if the URL or an option cannot be used
   */
  public static CompletableFuture<Client> connect(String url, Options options) {
    Client client = new Client(url, options);
    if (options.offline) {
      return CompletableFuture.completedFuture(client);
    }
    CompletableFuture<Client> result = client.connected.thenApply(nothing -> client);
    // Also if the application ends the attempt: nobody else has the client then.
    result.whenCompleteAsync(
        (made, failure) -> {
          if (made != client) {
            client.close();
          }
        });
    return result;
  }

  /**
   * Publishes; the future completes when the server has the message (QoS 1 and 2) or it is sent, or fails with {@link
   * RefusedException}. Waits while the client's queue is full. Messages of one thread are sent in its order.
   *
   * <p>A result comes behind the messages that were received before it. While 10,000 of them, or 64 MiB, wait for {@link
   * #receive()}, the client reads nothing: requests under way fail with a {@link FulmarException} although the server may
   * have them, and new ones fail at once.
   *
   * @throws IllegalArgumentException if the message cannot be published
   * @throws ClosedException if the client is closed
   */
  public CompletableFuture<Void> publish(Message message) {
    return request(token -> queue(message, token)).thenApply(reason -> null);
  }

  private int queue(Message message, long token) {
    for (; ; ) {
      int answer = message.publish(handle, token, INTERRUPT_POLL_MS);
      if (answer != Library.TIMEOUT || Thread.currentThread().isInterrupted()) {
        return answer;
      }
      lock.lock();
      try {
        if (!waiting.containsKey(token)) {
          throw ended == null ? backlog() : ended;
        }
      } finally {
        lock.unlock();
      }
    }
  }

  /**
   * Subscribes; the future has the granted QoS.
   *
   * @param options the QoS, and options of SUBSCRIBE (MQTT 5.0, section 3.8.3.1): 4 for No Local, 8 for Retain As Published
   * @throws IllegalArgumentException if the filter or the options cannot be used
   */
  public CompletableFuture<Integer> subscribe(String filter, int options) {
    byte[] text = Library.text(filter, "the filter");
    return request(token -> Library.FULMAR.fulmar_subscribe(handle, text, (byte) options, token));
  }

  /** Ends a subscription. */
  public CompletableFuture<Void> unsubscribe(String filter) {
    byte[] text = Library.text(filter, "the filter");
    return request(token -> Library.FULMAR.fulmar_unsubscribe(handle, text, token)).thenApply(reason -> null);
  }

  /**
   * Waits for the next message.
   *
   * @throws ClosedException after {@link #close()}
   * @throws DisconnectedException if the client has given up
   */
  public Message receive() throws InterruptedException {
    return receive(Duration.ofDays(365_000));
  }

  /** Waits for the next message, and returns null if there is none in time. */
  public Message receive(Duration timeout) throws InterruptedException {
    long nanos = TimeUnit.NANOSECONDS.convert(timeout);
    lock.lockInterruptibly();
    try {
      while (messages.isEmpty()) {
        if (ended != null) {
          throw ended;
        }
        if (nanos <= 0) {
          return null;
        }
        nanos = changed.awaitNanos(nanos);
      }
      changed.signalAll();
      Message message = messages.remove();
      messageBytes -= message.size();
      return message;
    } finally {
      lock.unlock();
    }
  }

  /** Acknowledges a message at QoS 1, with {@link Options#acknowledgeByHand()}. */
  public void acknowledge(Message message) {
    checked(Library.FULMAR.fulmar_acknowledge(handle, message.receipt()));
  }

  /** Says that the machine's network has changed: QUIC moves to a new socket, and the connection goes on. */
  public void networkChanged() {
    checked(Library.FULMAR.fulmar_network_changed(handle));
  }

  /** Returns statistics of the connection's path; fails if there is no connection. */
  public Statistics statistics() {
    Library.Path path = new Library.Path();
    checked(Library.FULMAR.fulmar_path(handle, path));
    return Statistics.of(path);
  }

  /**
   * Disconnects after what is queued is delivered, for at most drain_timeout_ms, and ends the client. {@link
   * Options#onEvent} may call it, too, but does not learn the results of requests then.
   */
  @Override
  public void close() {
    lock.lock();
    try {
      closing = true;
      changed.signalAll();
    } finally {
      lock.unlock();
    }
    // An error says that it is closed already, or has given up.
    Library.FULMAR.fulmar_disconnect(handle, -1);
    if (Thread.currentThread() == reader) {
      end(new ClosedException());
    } else {
      awaitReader();
    }
  }

  /** Waits until the reader has taken the last event, and freed the client. */
  private void awaitReader() {
    boolean interrupted = false;
    while (reader.isAlive()) {
      try {
        reader.join();
      } catch (InterruptedException interruption) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private CompletableFuture<Integer> request(LongToIntFunction call) {
    CompletableFuture<Integer> result = new CompletableFuture<>();
    long token;
    lock.lock();
    try {
      if (ended != null) {
        throw ended;
      }
      if (isFull()) {
        throw backlog();
      }
      token = ++lastToken;
      waiting.put(token, result);
      changed.signalAll();
    } finally {
      lock.unlock();
    }
    boolean begun = false;
    try {
      checked(call.applyAsInt(token));
      begun = true;
    } finally {
      if (!begun) {
        answer(token);
      }
    }
    return result;
  }

  /** Fails with the cause if a call has failed: the handle of a client that has ended is wrong, too. */
  private void checked(int answer) {
    if (answer < 0) {
      lock.lock();
      try {
        if (ended != null) {
          throw ended;
        }
      } finally {
        lock.unlock();
      }
    }
    Library.checked(answer);
  }

  /** Takes a request that waits from the list. */
  private CompletableFuture<Integer> answer(long token) {
    lock.lock();
    try {
      changed.signalAll();
      return waiting.remove(token);
    } finally {
      lock.unlock();
    }
  }

  /** Takes events until the last, and then frees the client: nobody but this thread uses what they point to. */
  private void read() {
    FulmarException why = new ClosedException();
    try {
      Library.Received event = new Library.Received();
      awaitRoom();
      while (Library.FULMAR.fulmar_next(handle, event, -1) == 1) {
        take(event);
        awaitRoom();
      }
    } catch (Throwable failure) {
      why.initCause(failure);
      throw failure;
    } finally {
      try {
        end(why);
      } finally {
        Library.FULMAR.fulmar_free(handle);
      }
    }
  }

  /** Waits until an event may be taken: results may stand behind more messages than wait already, and a close needs all. */
  private void awaitRoom() {
    lock.lock();
    try {
      while (!closing && (isFull() || messages.size() >= MAX_MESSAGES && waiting.isEmpty())) {
        changed.awaitUninterruptibly();
      }
    } finally {
      lock.unlock();
    }
  }

  /** Whether no further message may wait; with the lock. */
  private boolean isFull() {
    return messages.size() >= MAX_BACKLOG || messageBytes >= MAX_BACKLOG_BYTES;
  }

  private static FulmarException backlog() {
    return new FulmarException("10,000 received messages or 64 MiB wait, and results behind them: receive messages first");
  }

  private void keep(Message message) {
    lock.lock();
    try {
      // Only of a client that closes, which reads on.
      if (isFull()) {
        return;
      }
      messages.add(message);
      messageBytes += message.size();
      if (isFull() && !closing) {
        failWaiting(backlog());
      }
      changed.signalAll();
    } finally {
      lock.unlock();
    }
  }

  private void take(Library.Received event) {
    switch (event.kind) {
      case 1 -> {
        connected.completeAsync(() -> null);
        tell(Event.of(Event.Kind.CONNECTED, event));
      }
      case 2 -> {
        RefusedException refused = new RefusedException(event.reason, event.textOfEvent());
        fail(connected, refused);
        if (event.retryIn < 0) {
          end(new DisconnectedException(event.reason, event.textOfEvent()));
        }
        tell(Event.of(Event.Kind.LOST, event));
      }
      case 3 -> keep(Message.received(event));
      case 4, 5, 6 -> finish(event.token, event.reason, event.textOfEvent());
      case 7 -> tell(Event.of(Event.Kind.MIGRATED, event));
      case 8 -> tell(Event.of(Event.Kind.MAY_REPEAT, event));
      default -> {
        // Of a later library.
      }
    }
  }

  private void finish(long token, int reason, String text) {
    CompletableFuture<Integer> result = answer(token);
    if (result == null) {
      return;
    }
    if (reason >= 0 && reason < 0x80) {
      result.completeAsync(() -> reason);
    } else {
      fail(result, reason < 0 ? unanswered(text) : new RefusedException(reason, text));
    }
  }

  /** Why the server has given no answer: a close has overtaken it, or the client has given up. */
  private FulmarException unanswered(String text) {
    lock.lock();
    try {
      return closing ? new ClosedException() : new DisconnectedException(-1, text);
    } finally {
      lock.unlock();
    }
  }

  private static void fail(CompletableFuture<?> future, FulmarException failure) {
    ForkJoinPool.commonPool().execute(() -> future.completeExceptionally(failure));
  }

  private void tell(Event event) {
    try {
      options.onEvent.accept(event);
    } catch (Throwable failure) {
      Thread.UncaughtExceptionHandler handler = reader.getUncaughtExceptionHandler();
      handler.uncaughtException(reader, failure);
    }
  }

  /** Notes why the client has ended, unless it is known, and fails what waits. */
  private void end(FulmarException why) {
    lock.lock();
    try {
      if (ended == null) {
        ended = why;
      }
      failWaiting(ended);
      fail(connected, ended);
      changed.signalAll();
    } finally {
      lock.unlock();
    }
  }

  /** Fails the requests whose results are not to come any more; with the lock. */
  private void failWaiting(FulmarException why) {
    waiting.values().forEach(result -> fail(result, why));
    waiting.clear();
  }
}
