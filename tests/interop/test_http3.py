"""HTTP/3 and MQTT over WebTransport with aioquic; HTTP/1.1 with Python's own client. None of it is ours."""

import asyncio
import http.client
import json
import ssl
import unittest
from collections import defaultdict

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import ErrorCode, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, StreamDataReceived, StreamReset

from broker import Broker, eventually
from test_clients import text

PATIENCE_S = 20
HOST = "localhost"


class Http3(QuicConnectionProtocol):
    """What comes on each stream, to be waited for."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.http = H3Connection(self._quic, enable_webtransport=True)
        self.status, self.headers, self.body = {}, {}, defaultdict(bytes)
        self.ended, self.reset = set(), {}
        self.closed = None
        # Streams of sessions: aioquic opens them, but takes what comes back on them for a response.
        self.mqtt = set()
        self.changed = asyncio.Condition()

    def quic_event_received(self, event):
        if isinstance(event, StreamReset):
            self.reset[event.stream_id] = event.error_code
        if isinstance(event, ConnectionTerminated):
            self.closed = event.error_code
        if isinstance(event, StreamDataReceived) and event.stream_id in self.mqtt:
            self.body[event.stream_id] += event.data
            if event.end_stream:
                self.ended.add(event.stream_id)
            asyncio.ensure_future(self.tell())
            return
        for seen in self.http.handle_event(event):
            stream = seen.stream_id
            if isinstance(seen, HeadersReceived):
                self.headers[stream] = dict(seen.headers)
                self.status[stream] = int(self.headers[stream][b":status"])
            elif isinstance(seen, DataReceived):
                self.body[stream] += seen.data
            if seen.stream_ended:
                self.ended.add(stream)
        asyncio.ensure_future(self.tell())

    async def tell(self):
        async with self.changed:
            self.changed.notify_all()

    async def wait_for(self, done):
        async with self.changed:
            await asyncio.wait_for(self.changed.wait_for(done), PATIENCE_S)

    def ask(self, method, path, more=(), end=True):
        head = [(b":method", method), (b":scheme", b"https"), (b":authority", HOST.encode()), (b":path", path)]
        return self.ask_with(head + list(more), end)

    def ask_with(self, fields, end=True):
        stream = self._quic.get_next_available_stream_id()
        self.http.send_headers(stream, fields, end_stream=end)
        self.transmit()
        return stream

    async def answer(self, stream):
        await self.wait_for(lambda: stream in self.ended)
        return self.status[stream], self.body[stream]

    async def session(self, path=b"/mqtt"):
        stream = self.ask(b"CONNECT", path, [(b":protocol", b"webtransport")], end=False)
        await self.wait_for(lambda: stream in self.status)
        return stream

    def stream_of(self, session):
        stream = self.http.create_webtransport_stream(session)
        self.mqtt.add(stream)
        return stream

    def send(self, stream, data):
        self._quic.send_stream_data(stream, data)
        self.transmit()


def mqtt_connect(name: bytes) -> bytes:
    body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(name)
    return bytes([0x10, len(body)]) + body


CONNACK = bytes([0x20, 2, 0, 0])


class WithAddress(unittest.TestCase):
    SETTINGS = ""

    @classmethod
    def setUpClass(cls):
        cls.broker = Broker(cls.SETTINGS)
        cls.addClassCleanup(cls.broker.close)

    def dial(self, ticket=None, keep=None, idle_s=60):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], session_ticket=ticket)
        configuration.idle_timeout = idle_s
        configuration.max_datagram_frame_size = 65536
        configuration.server_name = HOST
        configuration.load_verify_locations(self.broker.ca)
        port = self.broker.ports["https"]
        # The broker listens on IPv4 only.
        return connect(
            "127.0.0.1",
            port,
            configuration=configuration,
            create_protocol=Http3,
            session_ticket_handler=keep,
            wait_connected=ticket is None,
        )


class OneAddress(WithAddress):
    def test_status_over_http_3_and_alt_svc_that_leads_there(self):
        port = self.broker.ports["https"]
        context = ssl.create_default_context(cafile=self.broker.ca)
        tcp = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_S)
        tcp.request("GET", "/api/v1/status")
        response = tcp.getresponse()
        self.assertEqual(json.loads(response.read())["protocol"], "HTTP/1.1")
        self.assertEqual(response.getheader("alt-svc"), f'h3=":{port}"; ma=86400')
        tcp.close()

        async def run():
            async with self.dial() as client:
                status, body = await client.answer(client.ask(b"GET", b"/api/v1/status"))
                self.assertEqual((status, json.loads(body)["protocol"]), (200, "HTTP/3"))
                stream = client.ask(b"GET", b"/nothing/here")
                self.assertEqual((await client.answer(stream))[0], 404)
                self.assertIn(b"alt-svc", client.headers[stream])

        asyncio.run(run())

    def test_a_client_that_does_not_trust_the_certificate_is_logged_with_its_address(self):
        async def run():
            configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"])
            configuration.server_name = HOST
            port = self.broker.ports["https"]
            with self.assertRaises(ConnectionError):
                async with connect("127.0.0.1", port, configuration=configuration):
                    pass

        asyncio.run(run())
        log = self.broker.data / "log"

        def is_logged():
            lines = log.read_text().splitlines()
            return any("INFO" in one and "HTTP/3: TLS handshake failed: " in one and "127.0.0.1:" in one for one in lines)

        eventually("the line in the log", is_logged)

    def test_only_safe_requests_are_answered_from_early_data(self):
        async def run():
            tickets = []
            for method, early, expected in [
                (b"GET", False, 200),
                (b"GET", True, 200),
                (b"POST", True, 425),
                (b"DELETE", True, 425),
                (b"POST", False, 405),
            ]:
                ticket = tickets.pop() if early else None
                async with self.dial(ticket, tickets.append) as client:
                    status, _ = await client.answer(client.ask(method, b"/"))
                    self.assertEqual((method, early, status), (method, early, expected))
                    self.assertEqual(client._quic.tls.early_data_accepted, early)
                    await client.wait_for(lambda: tickets)

        asyncio.run(run())

    def test_tickets_outlive_a_restart_and_work_once(self):
        async def early(ticket, keep):
            async with self.dial(ticket, keep) as client:
                self.assertEqual((await client.answer(client.ask(b"GET", b"/")))[0], 200)
                await client.wait_for(lambda: ticket or kept)
                return client._quic.tls.early_data_accepted

        kept = []
        asyncio.run(early(None, kept.append))
        self.assertEqual(self.broker.stop(), 0)
        self.broker.start()
        for expected in (True, False):
            self.assertEqual(asyncio.run(early(kept[0], None)), expected)

    def test_mqtt_over_webtransport_beside_ordinary_requests(self):
        async def run():
            async with self.dial() as client:
                session = await client.session()
                self.assertEqual(client.status[session], 200)
                stream = client.stream_of(session)

                client.send(stream, mqtt_connect(b"wt"))
                await client.wait_for(lambda: client.body[stream] == CONNACK)
                # SUBSCRIBE and its answer, then a message too large for one packet comes back.
                client.send(stream, bytes([0x82, 6, 0, 1]) + text(b"a") + bytes([0]))
                payload = bytes(range(256)) * 200
                body = text(b"a") + payload
                length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14])
                client.send(stream, bytes([0x30]) + length + body)
                expected = CONNACK + bytes([0x90, 3, 0, 1, 0]) + bytes([0x30]) + length + body
                await client.wait_for(lambda: len(client.body[stream]) >= len(expected))
                self.assertEqual(client.body[stream], expected)
                # The same connection still takes requests.
                self.assertEqual((await client.answer(client.ask(b"GET", b"/")))[0], 200)
                # A second stream of the session is refused; the first goes on.
                second = client.stream_of(session)
                client.send(second, mqtt_connect(b"other"))
                await client.wait_for(lambda: second in client.reset)
                client.send(stream, bytes([0xC0, 0]))
                await client.wait_for(lambda: client.body[stream].endswith(bytes([0xD0, 0])))
                # DISCONNECT: the broker ends the stream, and with it the session.
                client.send(stream, bytes([0xE0, 0]))
                await client.wait_for(lambda: {stream, session} <= client.ended)
                # Two sessions on one connection, one after the other and at once.
                both = [await client.session(), await client.session()]
                for number, session in enumerate(both):
                    stream = client.stream_of(session)
                    client.send(stream, mqtt_connect(b"wt%d" % number))
                    await client.wait_for(lambda: client.body[stream] == CONNACK)
                self.assertEqual(client.status[await client.session(b"/elsewhere")], 404)

        asyncio.run(run())

    def test_bounds(self):
        async def run():
            async with self.dial() as client:
                large = client.ask(b"GET", b"/", [(b"x-large", b"x" * 20_000)])
                await client.wait_for(lambda: large in client.ended or large in client.reset)
                self.assertIn(client.status.get(large), (None, 431))
                # A header frame that never ends is not collected.
                endless = client._quic.get_next_available_stream_id()
                client.send(endless, bytes([1, 0xBF, 0xFF, 0xFF, 0xFF]) + bytes(100_000))
                self.assertEqual((await client.answer(client.ask(b"GET", b"/")))[0], 200)
                declared = [(b"content-length", b"99999999")]
                self.assertEqual((await client.answer(client.ask(b"POST", b"/", declared)))[0], 413)

        asyncio.run(run())

    def test_malformed_requests_are_not_executed(self):
        good = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", HOST.encode()), (b":path", b"/api/v1/status")]
        agent = (b"user-agent", b"aioquic")

        async def run():
            async with self.dial() as client:
                for fields in [
                    [*good, (b":status", b"200")],
                    [*good, (b":status", b"299")],
                    [*good, (b":path", b"/elsewhere")],
                    [(b":method", b"POST"), *good],
                    [*good[:3], agent, good[3]],
                    [agent, *good],
                    [*good, (b"connection", b"close")],
                ]:
                    stream = client.ask_with(fields)
                    await client.wait_for(lambda: stream in client.reset or stream in client.ended)
                    with self.subTest(fields):
                        self.assertNotIn(stream, client.status)
                        self.assertEqual(client.reset.get(stream), ErrorCode.H3_MESSAGE_ERROR)
                # The connection goes on.
                self.assertEqual((await client.answer(client.ask_with([*good, agent])))[0], 200)

        asyncio.run(run())

    def test_a_clients_push_stream_ends_the_connection(self):
        async def run():
            async with self.dial() as client:
                stream = client._quic.get_next_available_stream_id(is_unidirectional=True)
                client.send(stream, bytes([1, 0]))
                await client.wait_for(lambda: client.closed is not None)
                self.assertEqual(client.closed, ErrorCode.H3_STREAM_CREATION_ERROR)

        asyncio.run(run())


class Silence(WithAddress):
    SETTINGS = "[http]\nidle_timeout_s = 5\n"

    def test_a_silent_session_outlives_the_idle_timeout(self):
        async def run():
            async with self.dial(idle_s=30) as client:
                session = await client.session()
                stream = client.stream_of(session)
                client.send(stream, mqtt_connect(b"silent"))
                await client.wait_for(lambda: client.body[stream] == CONNACK)
                # Connections without MQTT that begin later are closed, one after the other.
                for _ in range(2):
                    async with self.dial(idle_s=30) as idle:
                        self.assertEqual((await idle.answer(idle.ask(b"GET", b"/")))[0], 200)
                        await asyncio.wait_for(idle.wait_closed(), PATIENCE_S)
                client.send(stream, bytes([0xC0, 0]))
                await client.wait_for(lambda: client.body[stream].endswith(bytes([0xD0, 0])))

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
