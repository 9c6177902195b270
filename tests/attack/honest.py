"""The honest clients: a publisher and a subscriber that are logged in, and new logins over MQTT, QUIC and HTTPS,
by password, by SCRAM, and to the administration.

    honest.py SITE

SITE is JSON: where the listeners are, user and password. On standard input `begin` starts a measurement, `end`
ends it and has its figures printed as a line of JSON.
"""

import asyncio
import contextlib
import json
import os
import ssl
import struct
import sys
import time

from aioquic.asyncio import connect as quic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived

import wire

TOPIC = "attack/honest"
INTERVAL_S = 0.1
# How long a message may be on its way before it counts as lost, and a login may take at all.
LOST_S = 60 if os.environ.get("ATTACK_SHORT") == "1" else 10
LOGIN_S = 15
LOGIN_PAUSE_S = 0.7
# One of each at a time; `Honest` has a method of this name.
KINDS = ("mqtt", "new", "scram", "quic", "https", "admin")


class Figures:
    def __init__(self):
        self.published, self.arrived, self.worst_wait, self.broken = 0, 0, 0.0, 0
        self.logins, self.failed, self.worst = 0, 0, {}

    def login(self, kind, seconds):
        self.logins += 1
        self.worst[kind] = max(self.worst.get(kind, 0.0), seconds)

    def report(self):
        return {
            "published": self.published,
            "lost": self.published - self.arrived,
            "broken": self.broken,
            "worst_wait_s": round(self.worst_wait, 3),
            "logins": self.logins,
            "logins_failed": self.failed,
            "worst_login_s": {kind: round(seconds, 3) for kind, seconds in self.worst.items()},
        }


class Honest:
    def __init__(self, site):
        self.site, self.figures, self.number = site, Figures(), 0
        self.exchange = wire.Scram(site["keeper"], site["password"])
        # Users of first logins.
        self.fresh, self.done_by = 0, -1
        # When each message under way was to be sent, and what it counts for.
        self.under_way = {}
        self.heard = asyncio.Event()

    async def session(self, name):
        """A connection that is logged in, and its packets."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site["mqtt"])
        packets = wire.Packets()
        writer.write(wire.connect(f"honest-{name}", self.site["user"], self.site["password"], 0))
        first = await next_packets(reader, packets)
        if first[0] != (0x20, b"\x00\x00"):
            raise ConnectionError(f"refused: {first[0]}")
        return reader, writer, packets

    async def keep(self, name, work):
        """Works on a connection for ever; one that breaks is counted and opened again."""
        while True:
            try:
                reader, writer, packets = await self.session(name)
                await work(reader, writer, packets)
            except (OSError, ConnectionError, asyncio.IncompleteReadError):
                self.figures.broken += 1
                await asyncio.sleep(0.05)

    async def subscribe(self, reader, writer, packets):
        writer.write(wire.subscribe(TOPIC))
        while True:
            for first, body in await next_packets(reader, packets):
                if first >> 4 == 9:
                    self.heard.set()
                elif first >> 4 == 3:
                    length = struct.unpack_from(">H", body)[0]
                    writer.write(wire.puback(struct.unpack_from(">H", body, 2 + length)[0]))
                    number = struct.unpack_from(">Q", body, 4 + length)[0]
                    due, figures = self.under_way.pop(number, (None, None))
                    if figures is not None:
                        figures.arrived += 1
                        figures.worst_wait = max(figures.worst_wait, time.monotonic() - due)

    async def publish(self, reader, writer, packets):
        async def read():
            while True:
                await next_packets(reader, packets)

        reading = asyncio.create_task(read())
        try:
            due = time.monotonic()
            while not reading.done():
                due += INTERVAL_S
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                self.number += 1
                self.under_way[self.number] = (due, self.figures)
                self.figures.published += 1
                identifier = self.number % 0xFFFF + 1
                writer.write(wire.publish(TOPIC, identifier, struct.pack(">Q", self.number)))
                await writer.drain()
            await reading
        finally:
            reading.cancel()

    async def logins(self, kind, login):
        """New logins one after the other; one that is refused is tried again until its time is up."""
        while True:
            figures, begin = self.figures, time.monotonic()
            while True:
                try:
                    done = await asyncio.wait_for(login(), LOGIN_S)
                except (OSError, ConnectionError, asyncio.TimeoutError, asyncio.IncompleteReadError):
                    done = False
                gone = time.monotonic() - begin
                if done or gone > LOGIN_S:
                    break
                await asyncio.sleep(0.2)
            figures.login(kind, gone)
            figures.failed += not done
            await asyncio.sleep(LOGIN_PAUSE_S)

    async def mqtt(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site["mqtt"])
        try:
            writer.write(wire.connect(f"login-{time.monotonic_ns()}", self.site["user"], self.site["password"]))
            return (await next_packets(reader, wire.Packets()))[0] == (0x20, b"\x00\x00")
        finally:
            writer.close()

    async def new(self):
        """The first login of a user, from a network from which nobody has come; a refusal is tried again with the same one."""
        if self.done_by == self.fresh:
            self.fresh += 1
        number = self.fresh
        user, source = self.site["fresh"] % (self.site["fresh_users"] + number), f"127.254.{number // 200}.{number % 200 + 1}"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site["mqtt"], local_addr=(source, 0))
        try:
            writer.write(wire.connect(f"new-{number}", user, self.site["password"]))
            if (await next_packets(reader, wire.Packets()))[0] != (0x20, b"\x00\x00"):
                return False
            self.done_by = number
            return True
        finally:
            writer.close()

    async def scram(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site["mqtt"])
        try:
            packets = wire.Packets()
            writer.write(wire.connect_scram(f"login-{time.monotonic_ns()}", self.exchange.first()))
            asked = (await next_packets(reader, packets))[0]
            writer.write(wire.auth_scram(self.exchange.final(asked)))
            first, body = (await next_packets(reader, packets))[0]
            return first == 0x20 and body[1] == 0
        finally:
            writer.close()

    async def quic(self):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"])
        configuration.load_verify_locations(self.site["ca"])
        async with quic_connect("localhost", self.site["quic"], configuration=configuration, create_protocol=Stream) as client:
            client.send(wire.connect(f"login-{time.monotonic_ns()}", self.site["user"], self.site["password"]))
            return (await client.packet.get()) == (0x20, b"\x00\x00")

    async def https(self):
        return await self.post("/api/v1/session", self.site["account"])

    async def admin(self):
        return await self.post("/api/admin/v1/session", self.site["keeper"])

    async def post(self, path, user):
        body = json.dumps({"user": user, "password": self.site["password"]}).encode()
        context = ssl.create_default_context(cafile=self.site["ca"])
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site["https"], ssl=context, server_hostname="localhost")
        try:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            return (await reader.readline()).split()[1:2] in ([b"200"], [b"201"])
        finally:
            writer.close()


class Stream(QuicConnectionProtocol):
    """The control stream of MQTT over QUIC."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.packets, self.packet = wire.Packets(), asyncio.Queue()

    def send(self, data):
        self._quic.send_stream_data(0, data)
        self.transmit()

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived):
            for packet in self.packets.take(event.data):
                self.packet.put_nowait(packet)


async def next_packets(reader, packets):
    while True:
        data = await reader.read(65536)
        if not data:
            raise ConnectionError("closed")
        taken = list(packets.take(data))
        if taken:
            return taken


async def main(site):
    honest = Honest(site)
    tasks = [asyncio.create_task(honest.keep("subscriber", honest.subscribe))]
    await asyncio.wait_for(honest.heard.wait(), 30)
    tasks.append(asyncio.create_task(honest.keep("publisher", honest.publish)))
    tasks += [asyncio.create_task(honest.logins(kind, getattr(honest, kind))) for kind in KINDS]
    print("ready", flush=True)
    loop, lines = asyncio.get_running_loop(), asyncio.Queue()

    def read():
        # Not sys.stdin, which keeps a second line where the loop does not see it.
        data = os.read(0, 4096)
        for line in data.split() if data else [b""]:
            lines.put_nowait(line.decode())

    loop.add_reader(0, read)
    while word := await lines.get():
        if word == "begin":
            honest.figures = Figures()
        elif word == "end":
            measured, honest.figures = honest.figures, Figures()
            # What is under way has its time.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(arrived(measured), LOST_S)
            print(json.dumps(measured.report()), flush=True)
    for task in tasks:
        task.cancel()


async def arrived(figures):
    while figures.arrived < figures.published:
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
