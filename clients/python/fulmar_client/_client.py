"""A client for asyncio: results and messages come by the event loop, without a thread of Python's."""

import asyncio
import ctypes
import dataclasses
from typing import Any, AsyncIterator, Dict, List, Optional, Tuple, Union

from . import _library as c
from ._library import LIBRARY, Error, as_text, checked, made

# How many messages wait for the application here before the client reads no further ones, unless a result may stand behind
# them; and how many, and how many bytes of them, whatever stands behind them.
_MESSAGES = 1000
_BACKLOG = 10_000
_BACKLOG_BYTES = 64 << 20


class Disconnected(Exception):
    """The client is closed, and `reason` is None, or it gave up: `reason` is the server's reason code, or -1."""

    def __init__(self, text: str, reason: Optional[int] = None):
        super().__init__(text)
        self.reason = reason


class Refused(Exception):
    """The server has refused a request; `reason` is its reason code, or -1 where it gave none."""

    def __init__(self, reason: int, text: str):
        super().__init__(text or f"refused with reason code {reason:#04x}")
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Message:
    """A received message, with its properties (MQTT 5.0)."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    content_type: Optional[str] = None
    response_topic: Optional[str] = None
    correlation_data: Optional[bytes] = None
    expiry_s: Optional[int] = None
    user_properties: Tuple[Tuple[str, str], ...] = ()
    receipt: int = 0

    def _size(self) -> int:
        """About how many bytes it has."""
        texts = [self.topic, self.content_type or "", self.response_topic or ""]
        texts += [text for pair in self.user_properties for text in pair]
        return len(self.payload) + len(self.correlation_data or b"") + sum(map(len, texts))


@dataclasses.dataclass(frozen=True)
class Path:
    """The connection's path; all but `transport` of QUIC only."""

    transport: str
    early_data: bool
    rtt_ms: float
    lost_packets: int
    sent_bytes: int
    received_bytes: int
    migrations: int
    server_moves: int


class Client:
    """A client of one broker. Options are those of fulmar.h by name, such as ca_file, username, password, client_id,
    session_expiry_s, streams and fallback_port. With `offline`, it begins without a connection: what is published waits."""

    def __init__(self, url: str, *, offline: bool = False, **options: Any):
        self._client = self._options = 0
        self._why: Tuple[str, Optional[int]] = ("the client is not in use yet: async with", None)
        self._options = made(LIBRARY.fulmar_options_new(as_text(url, "the URL")))
        for name, value in options.items():
            if isinstance(value, bool):
                value = int(value)
            data = value if isinstance(value, bytes) else str(value).encode()
            checked(LIBRARY.fulmar_options_set(self._options, as_text(name, "the option"), data, len(data)))
        self._last_token = 0
        self._waiting: Dict[int, asyncio.Future] = {}
        self._offline = offline
        self._connected: Optional[asyncio.Future] = None
        self._reading = False
        #: The reason of the last lost connection.
        self.last_error: Optional[str] = None

    async def __aenter__(self) -> "Client":
        """Connects, and waits until the server has accepted it; raises `Refused` if the first attempt fails, unless
        `offline`."""
        if self._client:
            raise Error(c.BUSY, "this client is in use")
        self._loop = asyncio.get_running_loop()
        self._received: "asyncio.Queue[Optional[Message]]" = asyncio.Queue()
        self._received_bytes = 0
        self._closing = False
        self._why = ("the client is closed", None)
        self._client = made(LIBRARY.fulmar_connect(self._options))
        self._fd = checked(LIBRARY.fulmar_event_fd(self._client))
        self._queueing = asyncio.Lock()
        self._connected = None if self._offline else self._loop.create_future()
        self._read(True)
        try:
            if self._connected:
                await self._connected
        except BaseException:
            self._free()
            raise
        return self

    async def __aexit__(self, *_: Any) -> None:
        """Disconnects, after what is queued is delivered."""
        client, self._closing = self._client, True
        self._read(bool(client))
        try:
            await self._loop.run_in_executor(None, lambda: LIBRARY.fulmar_disconnect(client, -1))
        finally:
            self._free()

    def __del__(self) -> None:
        for handle in (self._client, self._options):
            if handle:
                LIBRARY.fulmar_free(handle)

    def _free(self) -> None:
        self._read(False)
        if self._client:
            LIBRARY.fulmar_free(self._client)
        self._client = 0
        self._end()

    def _end(self) -> None:
        for future in [*self._waiting.values(), *filter(None, [self._connected])]:
            if not future.done():
                future.set_exception(Disconnected(*self._why))
        self._waiting.clear()
        self._received.put_nowait(None)

    def _read(self, reading: bool) -> None:
        if reading != self._reading:
            self._reading = reading
            if reading:
                self._loop.add_reader(self._fd, self._take)
            else:
                self._loop.remove_reader(self._fd)

    def _take(self) -> None:
        event = c.Event()
        # Other tasks have their turns in between.
        for _ in range(100):
            # A result may stand behind more messages.
            if not self._closing and (self._is_full() or self._received.qsize() >= _MESSAGES and not self._waiting):
                return self._read(False)
            taken = LIBRARY.fulmar_next(self._client, ctypes.byref(event), 0)
            if taken == 0:
                return None
            if taken < 0:
                self._read(False)
                return self._end()
            self._on_event(event)
        return None

    def _on_event(self, event: c.Event) -> None:
        if event.kind == c.MESSAGE:
            self._keep(_message(event))
        elif event.kind in (c.PUBLISHED, c.SUBSCRIBED, c.UNSUBSCRIBED):
            future = self._waiting.pop(event.token, None)
            if future is None or future.done():
                return
            if 0 <= event.reason < 0x80:
                future.set_result(event.reason)
            elif event.reason >= 0:
                future.set_exception(Refused(event.reason, event.text.decode()))
            else:
                # A close has overtaken it, or the client gives up.
                future.set_exception(Disconnected(*(self._why if self._closing else (event.text.decode(), event.reason))))
        elif event.kind == c.CONNECTED:
            if self._connected and not self._connected.done():
                self._connected.set_result(None)
        elif event.kind == c.DISCONNECTED:
            self.last_error = event.text.decode()
            if event.retry_in < 0:
                self._why = (self.last_error, event.reason)
            if self._connected and not self._connected.done():
                self._connected.set_exception(Refused(event.reason, self.last_error))

    def _is_full(self) -> bool:
        return self._received.qsize() >= _BACKLOG or self._received_bytes >= _BACKLOG_BYTES

    def _keep(self, message: Message) -> None:
        # Only of a client that closes, which reads on.
        if self._is_full():
            return
        self._received.put_nowait(message)
        self._received_bytes += message._size()
        if self._is_full() and not self._closing:
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(_backlog())
            self._waiting.clear()

    def _checked(self, answer: int) -> int:
        """The answer of a call, which fails because the client is closed meanwhile, or has given up, or for its own reason."""
        if answer == c.CLOSED or answer == c.INVALID and not self._client:
            raise Disconnected(*self._why)
        return checked(answer)

    def _open(self) -> int:
        if not self._client:
            raise Disconnected(*self._why)
        return self._client

    def _request(self) -> Tuple[int, asyncio.Future]:
        self._open()
        if self._is_full():
            raise _backlog()
        self._last_token += 1
        future = self._waiting[self._last_token] = self._loop.create_future()
        self._read(True)
        return self._last_token, future

    async def publish(
        self, topic: str, payload: Union[bytes, str] = b"", qos: int = 0, retain: bool = False, *,
        content_type: Optional[str] = None, response_topic: Optional[str] = None, correlation_data: Optional[bytes] = None,
        expiry_s: Optional[int] = None, user_properties: Union[Dict[str, str], List[Tuple[str, str]], None] = None,
    ) -> int:
        """Publishes, and waits until the server has the message (QoS 1 and 2) or it is sent. Returns the reason code.

        A result comes behind the messages that were received before it. While 10,000 of them, or 64 MiB, wait in
        `messages()`, the client reads nothing: requests under way raise `Error` although the server may have them, and new
        ones raise it at once."""
        data = payload.encode() if isinstance(payload, str) else bytes(memoryview(payload))
        pairs = user_properties.items() if isinstance(user_properties, dict) else user_properties or []
        given = [(0x02, expiry_s, b"", b"")] if expiry_s is not None else []
        given += [(0x03, 0, b"", content_type.encode())] if content_type is not None else []
        given += [(0x08, 0, b"", response_topic.encode())] if response_topic is not None else []
        given += [(0x09, 0, b"", correlation_data)] if correlation_data is not None else []
        given += [(0x26, 0, name.encode(), value.encode()) for name, value in pairs]
        properties = (c.Property * len(given))(*(
            c.Property(ctypes.cast(name, ctypes.c_void_p), len(name), ctypes.cast(value, ctypes.c_void_p), len(value), number, id)
            for id, number, name, value in given
        ))
        publication = c.Publication(as_text(topic, "the topic"), data, len(data), properties, len(given), qos, retain)
        token, future = self._request()
        try:
            # In turn, or messages would overtake one another where the queue is full.
            async with self._queueing:
                while not future.done():
                    answer = LIBRARY.fulmar_publish(self._client, ctypes.byref(publication), token, 0)
                    if answer != c.TIMEOUT:
                        self._checked(answer)
                        break
                    await asyncio.sleep(0.01)
            return await future
        finally:
            self._waiting.pop(token, None)

    async def subscribe(self, filter: str, qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False) -> int:
        """Subscribes, and returns the granted QoS."""
        token, future = self._request()
        try:
            options = qos | no_local << 2 | retain_as_published << 3
            self._checked(LIBRARY.fulmar_subscribe(self._client, as_text(filter, "the filter"), options, token))
            return await future
        finally:
            self._waiting.pop(token, None)

    async def unsubscribe(self, filter: str) -> int:
        """Ends a subscription."""
        token, future = self._request()
        try:
            self._checked(LIBRARY.fulmar_unsubscribe(self._client, as_text(filter, "the filter"), token))
            return await future
        finally:
            self._waiting.pop(token, None)

    async def messages(self) -> AsyncIterator[Message]:
        """Received messages, until the client ends: raises `Disconnected` if it gave up."""
        while True:
            message = await self._received.get()
            if message is None:
                # For others who wait.
                self._received.put_nowait(None)
                if self._client:
                    raise Disconnected(*self._why)
                return
            self._received_bytes -= message._size()
            if self._client:
                self._read(True)
            yield message

    def acknowledge(self, message: Message) -> None:
        """Acknowledges a message at QoS 1, of a client with acknowledge_by_hand."""
        self._checked(LIBRARY.fulmar_acknowledge(self._open(), message.receipt))

    def network_changed(self) -> None:
        """Says that the machine's network has changed: QUIC moves at once."""
        self._checked(LIBRARY.fulmar_network_changed(self._open()))

    async def path(self) -> Path:
        """Statistics of the connection's path."""
        found, client = c.PathStructure(), self._open()
        await self._loop.run_in_executor(None, lambda: self._checked(LIBRARY.fulmar_path(client, ctypes.byref(found))))
        return Path(c.TRANSPORTS[found.transport], found.early_data, found.rtt_us / 1000, found.lost_packets, found.sent_bytes,
                    found.received_bytes, found.migrations, found.server_moves)


def _backlog() -> Error:
    text = "10,000 received messages or 64 MiB wait, and results behind them: receive messages first"
    return Error(c.TIMEOUT, text)


def _message(event: c.Event) -> Message:
    more: Dict[str, Any] = {}
    users = []
    for property in event.properties[:event.property_count]:
        value = ctypes.string_at(property.value, property.value_size)
        if property.id == 0x02:
            more["expiry_s"] = property.number
        elif property.id == 0x03:
            more["content_type"] = value.decode()
        elif property.id == 0x08:
            more["response_topic"] = value.decode()
        elif property.id == 0x09:
            more["correlation_data"] = value
        elif property.id == 0x26:
            users.append((ctypes.string_at(property.name, property.name_size).decode(), value.decode()))
    payload = ctypes.string_at(event.payload, event.payload_size)
    return Message(event.topic.decode(), payload, event.qos, event.retain, event.dup, user_properties=tuple(users),
                   receipt=event.receipt, **more)
