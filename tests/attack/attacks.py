"""The attacks, each a process of its own that runs for a time, at a rate, and says how much it did.

    attacks.py NAME SECONDS SITE

SITE is JSON: where the listeners are. The last line of the output is the number of what was tried.
"""

import asyncio
import ctypes
import json
import os
import random
import select
import socket
import ssl
import struct
import sys
import time

import wire

BAD_LOGIN = json.dumps({"user": "stranger", "password": "not it"}).encode()
# Sources on loopback that are not the honest clients'.
SOURCES = [f"127.{net}.{host}.9" for net in (1, 2) for host in range(1, 33)]


class Pace:
    """So many a second for so long, whatever each takes."""

    def __init__(self, seconds, rate):
        self.begin, self.seconds, self.rate, self.done = time.monotonic(), seconds, rate, 0

    def due(self):
        """How many are due now; None when the time is up."""
        gone = time.monotonic() - self.begin
        if gone >= self.seconds:
            return None
        return int(gone * self.rate) - self.done


def spread(pace, one):
    """Does `one` at the pace."""
    while (due := pace.due()) is not None:
        if due <= 0:
            time.sleep(0.0005)
            continue
        for _ in range(min(due, 256)):
            one(pace.done)
            pace.done += 1
    return pace.done


def from_somewhere(kind, number):
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind((SOURCES[number % len(SOURCES)], 0))
    return sock


def tls(site, protocols):
    context = ssl.create_default_context(cafile=site["ca"])
    context.set_alpn_protocols(protocols)
    return context


def dial_tls(site, context, number):
    sock = from_somewhere(socket.SOCK_STREAM, number)
    sock.settimeout(5)
    try:
        sock.connect(("127.0.0.1", site["https"]))
        return context.wrap_socket(sock, server_hostname="localhost")
    except OSError:
        sock.close()
        raise


def logins_http1(site, seconds):
    """2,000 a minute: a connection each, closed behind the request."""
    context, request = tls(site, ["http/1.1"]), b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n"
    request += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BAD_LOGIN) + BAD_LOGIN

    def one(number):
        try:
            sock = dial_tls(site, context, number)
        except OSError:
            return
        try:
            sock.sendall(request)
        except OSError:
            pass
        finally:
            sock.close()

    return spread(Pace(seconds, 2000 / 60), one)


def logins_http2(site, seconds):
    """2,000 a minute: streams that are reset, up to 100 on a connection."""
    context, state = tls(site, ["h2"]), {"sock": None, "stream": 1}

    def one(number):
        try:
            if state["sock"] is None or state["stream"] > 200:
                if state["sock"]:
                    state["sock"].close()
                state.update(sock=dial_tls(site, context, number), stream=1)
                state["sock"].sendall(wire.h2_preface())
            sock, stream = state["sock"], state["stream"]
            sock.sendall(wire.h2_login(stream, BAD_LOGIN))
            time.sleep(0.002)
            sock.sendall(wire.h2_reset(stream))
            state["stream"] += 2
            # What the server says is read so that it is not the server that waits.
            sock.setblocking(False)
            try:
                while sock.recv(65536):
                    pass
            except (ssl.SSLWantReadError, BlockingIOError):
                pass
            sock.settimeout(5)
        except OSError:
            state["sock"] = None

    return spread(Pace(seconds, 2000 / 60), one)


def logins_http3(site, seconds):
    """2,000 a minute: streams that are reset, up to 100 on a connection."""
    from aioquic.asyncio import connect
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.h3.connection import H3Connection
    from aioquic.quic.configuration import QuicConfiguration

    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", b"/api/v1/session"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BAD_LOGIN)),
    ]
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"])
    configuration.load_verify_locations(site["ca"])
    pace = Pace(seconds, 2000 / 60)

    async def some():
        async with connect("127.0.0.1", site["https"], configuration=configuration, create_protocol=QuicConnectionProtocol) as client:
            http = H3Connection(client._quic)
            for _ in range(100):
                while (due := pace.due()) is not None and due <= 0:
                    await asyncio.sleep(0.001)
                if due is None:
                    return
                stream = client._quic.get_next_available_stream_id()
                http.send_headers(stream, headers)
                http.send_data(stream, BAD_LOGIN, end_stream=False)
                client.transmit()
                await asyncio.sleep(0.002)
                client._quic.reset_stream(stream, 0x10C)
                client._quic.stop_stream(stream, 0x10C)
                client.transmit()
                pace.done += 1

    async def all_of_them():
        while pace.due() is not None:
            try:
                await asyncio.wait_for(some(), seconds + 5)
            except (OSError, ConnectionError, asyncio.TimeoutError):
                await asyncio.sleep(0.05)

    asyncio.run(all_of_them())
    return pace.done


def unfinished_bodies(site, seconds):
    """64 connections at once, each with most of a body of 8 MB that never ends; a closed one is opened again."""
    context, size = tls(site, ["http/1.1"]), 8_000_000
    request = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n" % size
    piece, open_ones, opened = b" " * 65536, {}, 0
    pace = Pace(seconds, 1)
    while pace.due() is not None:
        while len(open_ones) < 64 and pace.due() is not None:
            try:
                sock = dial_tls(site, context, opened)
                sock.sendall(request)
                sock.setblocking(False)
            except OSError:
                time.sleep(0.01)
                break
            opened += 1
            open_ones[sock] = size - 65536
        for sock, left in list(open_ones.items()):
            try:
                if left > 0:
                    open_ones[sock] -= sock.send(piece)
                elif select.select([sock], [], [], 0)[0] and not sock.recv(4096):
                    raise OSError
            except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                pass
            except OSError:
                sock.close()
                del open_ones[sock]
        time.sleep(0.002)
    for sock in open_ones:
        sock.close()
    return opened


def wrong_passwords(site, seconds):
    """60 a second, under names that there are not and every fourth under the honest clients'."""
    waiting = []

    def one(number):
        user = site["user"] if number % 4 == 0 else f"stranger{number}"
        try:
            sock = from_somewhere(socket.SOCK_STREAM, number)
            sock.settimeout(1)
            sock.connect(("127.0.0.1", site["mqtt"]))
            sock.sendall(wire.connect(f"stranger{number}", user, "not it"))
        except OSError:
            sock.close()
            return
        # Half of them do not wait for the answer.
        waiting.append(sock)
        if number % 2 or len(waiting) > 512:
            waiting.pop(0).close()

    return spread(Pace(seconds, 60), one)


class Vector(ctypes.Structure):
    """struct iovec"""

    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """struct mmsghdr, for connected sockets: a datagram and nothing else."""

    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("vectors", ctypes.POINTER(Vector)),
        ("vector_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_uint),
        ("sent", ctypes.c_uint),
    ]


class Datagrams:
    """Datagrams laid out once, so that the kernel takes many at a call (sendmmsg)."""

    def __init__(self, datagrams):
        self.memory = [ctypes.create_string_buffer(datagram, len(datagram)) for datagram in datagrams]
        self.vectors = [Vector(ctypes.addressof(memory), len(memory)) for memory in self.memory]
        self.messages = (Message * len(datagrams))(*(Message(vectors=ctypes.pointer(vector), vector_count=1) for vector in self.vectors))
        self.size, self.call = len(datagrams), ctypes.CDLL(None, use_errno=True).sendmmsg

    def send(self, sock, first, count):
        """At most `count` of them, from `first` on and no further than the last; how many were taken."""
        first %= self.size
        count = min(count, self.size - first)
        return max(0, self.call(sock.fileno(), ctypes.byref(self.messages, first * ctypes.sizeof(Message)), count, socket.MSG_DONTWAIT))


# Datagrams of one address at a call: each address comes again several times a second.
AT_ONCE = 32


def flood(seconds, rate, port, datagrams):
    """Datagrams from many addresses, none of which answers. Counts what the kernel took."""
    socks = [from_somewhere(socket.SOCK_DGRAM, number) for number in range(4 * len(SOURCES))]
    for sock in socks:
        sock.connect(("127.0.0.1", port))
    laid_out, pace, calls = Datagrams(datagrams), Pace(seconds, rate), 0
    while (due := pace.due()) is not None:
        if due <= 0:
            time.sleep(0.001)
            continue
        for _ in range(64):
            if due <= 0:
                break
            calls += 1
            # None are taken where the server's queue is full or has refused one.
            taken = laid_out.send(socks[calls % len(socks)], pace.done, min(due, AT_ONCE))
            pace.done += taken
            due -= taken
    return pace.done


def initials(site, seconds):
    """10,000 a second: three in four are whole handshakes for a protocol nobody speaks, the rest noise."""
    pool = [wire.initial(wire.client_hello()) for _ in range(1500)] + [wire.initial_of_noise() for _ in range(500)]
    random.shuffle(pool)
    return flood(seconds, 10_000, site["quic"], pool)


def dtls_hellos(site, seconds):
    """300 a second, each with a random of its own."""
    return flood(seconds, 300, site["coaps"], [wire.dtls_hello() for _ in range(3000)])


def logged_in(site, name, durable=True, user=None):
    """A client of the attacker, who has an account, in MQTT 5."""
    sock = from_somewhere(socket.SOCK_STREAM, 0)
    sock.settimeout(5)
    sock.connect(("127.0.0.1", site["mqtt"]))
    sock.sendall(wire.connect5(name, user or site["attacker"], site["password"], WEEK_S if durable else 0))
    return sock


def answer(sock, packets):
    """The next packet that the broker sends; None if it has closed or says nothing."""
    while True:
        for packet in packets.take(b""):
            return packet
        try:
            data = sock.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        packets.buffer += data


def many_sessions(site, seconds):
    """As many durable sessions as there may be, each left at once, with ten long subscriptions."""
    pace = Pace(seconds, 600)

    def one(number):
        try:
            with logged_in(site, f"many-{number}") as sock:
                filters = b"".join(wire.text(f"{'x' * 500}/{number}/{at}") + b"\x01" for at in range(10))
                sock.sendall(wire.packet(0x82, struct.pack(">HB", 1, 0) + filters))
                packets = wire.Packets()
                answer(sock, packets), answer(sock, packets)
        except OSError:
            pass

    return spread(pace, one)


def full_queues(site, seconds):
    """60 sessions that are away, and messages of 100 kB for each of them."""
    for number in range(60):
        with logged_in(site, f"away-{number}") as sock:
            sock.sendall(wire.packet(0x82, struct.pack(">HB", 1, 0) + wire.text(f"away/{number}/#") + b"\x01"))
            packets = wire.Packets()
            answer(sock, packets), answer(sock, packets)
    publisher, packets = logged_in(site, "filler"), wire.Packets()
    publisher.settimeout(30)
    answer(publisher, packets)
    payload = os.urandom(100_000)

    def one(number):
        topic = wire.text(f"away/{number % 60}/t")
        publisher.sendall(wire.packet(0x32, topic + struct.pack(">HB", number % 60_000 + 1, 0) + payload))
        if answer(publisher, packets) is None:
            raise SystemExit("the broker has closed the connection")

    return spread(Pace(seconds, 1_000), one)


def deaf_readers(site, seconds):
    """Subscribers that read nothing, and messages of 10 kB at QoS 0 for all of them."""
    deaf, first = [], logged_in(site, "first", durable=False)
    # From then on, logins are remembered and not queued.
    answer(first, wire.Packets())
    for number in range(500):
        sock = logged_in(site, f"deaf-{number}", durable=False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(wire.packet(0x82, struct.pack(">HB", 1, 0) + wire.text("deaf/#") + b"\x00"))
        deaf.append(sock)
    publisher, payload = logged_in(site, "loud", durable=False), os.urandom(10_000)
    publisher.settimeout(30)

    def one(_):
        publisher.sendall(wire.packet(0x30, wire.text("deaf/t") + b"\x00" + payload))

    return spread(Pace(seconds, 100), one)


def long_aliases(site, seconds):
    """64 topic aliases of 64 KiB on each of 200 connections."""
    socks, first = [], logged_in(site, "first", durable=False)
    answer(first, wire.Packets())

    def one(number):
        try:
            if number % 64 == 0 and len(socks) < 200:
                socks.append(logged_in(site, f"alias-{number}", durable=False))
            topic = wire.text("t" * 65_000 + str(number))
            properties = b"\x03\x23" + struct.pack(">H", number % 64 + 1)
            socks[-1].sendall(wire.packet(0x30, topic + properties))
        except OSError:
            pass

    return spread(Pace(seconds, 300), one)


WEEK_S = 604_800

ATTACKS = {
    "aborted logins, HTTP/1.1": (logins_http1, 2000 / 60),
    "aborted logins, HTTP/2": (logins_http2, 2000 / 60),
    "aborted logins, HTTP/3": (logins_http3, 2000 / 60),
    "unfinished bodies": (unfinished_bodies, None),
    "wrong passwords, MQTT": (wrong_passwords, 60),
    "failing QUIC Initials": (initials, 10_000),
    "DTLS ClientHellos": (dtls_hellos, 300),
    "many sessions": (many_sessions, 600),
    "full queues": (full_queues, 1_000),
    "deaf readers": (deaf_readers, 100),
    "long aliases": (long_aliases, 300),
}

if __name__ == "__main__":
    os.nice(10)
    attack, _ = ATTACKS[sys.argv[1]]
    began = time.monotonic()
    number = attack(json.loads(sys.argv[3]), float(sys.argv[2]))
    print(json.dumps({"number": number, "seconds": time.monotonic() - began}))
