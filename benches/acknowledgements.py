"""How long a publisher waits for its acknowledgement while a broker is under load: a client of its own that publishes at
QoS 1, one message at a time, at a low rate. Its session is subscribed to what it publishes and outlives its connection,
so each message is stored before it is acknowledged. MQTT 3.1.1 on a plain socket."""

import socket
import struct
import threading
import time

PER_S = 100
TOPIC = b"acknowledgements"
CONNECT, CONNACK, PUBLISH, PUBACK, SUBSCRIBE, SUBACK = 1, 2, 3, 4, 8, 9


def packet(first, body):
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def text(value):
    return struct.pack(">H", len(value)) + value


class Publisher:
    """Publishes from when it is made until `stop`, which returns the times from PUBLISH to PUBACK in milliseconds."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.input = self.socket.makefile("rb")
        # Protocol level 4, no clean session, no keep-alive.
        self.send(CONNECT << 4, text(b"MQTT") + bytes([4, 0, 0, 0]) + text(TOPIC))
        self.wait(CONNACK)
        self.send(SUBSCRIBE << 4 | 2, struct.pack(">H", 1) + text(TOPIC) + b"\x01")
        self.wait(SUBACK)
        self.times, self.ending, self.error = [], threading.Event(), None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def send(self, first, body):
        self.socket.sendall(packet(first, body))

    def wait(self, kind, identifier=None):
        """Reads until a packet of this kind comes; acknowledges messages."""
        while True:
            first, length = self.input.read(2)
            body = self.input.read(length)
            if first >> 4 == PUBLISH:
                at = 2 + len(TOPIC)
                self.send(PUBACK << 4, body[at:at + 2])
            if first >> 4 == kind and identifier in (None, body[:2]):
                return

    def run(self):
        number, due = 0, time.monotonic()
        try:
            while not self.ending.wait(max(0, due - time.monotonic())):
                due = max(due + 1 / PER_S, time.monotonic())
                number = number % 65_535 + 1
                identifier = struct.pack(">H", number)
                sent = time.monotonic()
                self.send(PUBLISH << 4 | 2, text(TOPIC) + identifier + bytes(64))
                self.wait(PUBACK, identifier)
                self.times.append((time.monotonic() - sent) * 1000)
        except (OSError, ValueError) as error:
            self.error = error

    def stop(self):
        self.ending.set()
        self.thread.join(30)
        self.socket.close()
        if self.error:
            raise RuntimeError(f"acknowledgements: {self.error}")
        return sorted(self.times)


def quantile(times, share):
    return times[min(int(len(times) * share), len(times) - 1)]
