"""Clients we did not write, over every transport: mosquitto's, paho, aioquic."""

import asyncio
import contextlib
import json
import pathlib
import signal
import ssl
import subprocess
import threading
import unittest

import paho.mqtt.client as paho
from aioquic.asyncio import connect as quic_connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived, StreamReset

from broker import PATIENCE_S, Broker, eventually
from relay import Relay


VECTORS = pathlib.Path(__file__).parents[2] / "docs/quic-headers.json"


class WithBroker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.broker = Broker()

    @classmethod
    def tearDownClass(cls):
        cls.broker.close()


class Mosquitto(WithBroker):
    def round_trip(self, topic, options, version):
        # Line by line, or SUBACK would be told only at the end.
        command = ["stdbuf", "-oL", "mosquitto_sub", "-h", "localhost", *options, "-V", version, "-t", topic, "-q", "2"]
        with subprocess.Popen([*command, "-C", "1", "-v", "-d"], stdout=subprocess.PIPE, text=True) as sub:
            timer = threading.Timer(PATIENCE_S, sub.kill)
            timer.start()
            for line in sub.stdout:
                if "received SUBACK" in line:
                    break
            publish = ["mosquitto_pub", "-h", "localhost", *options, "-V", version, "-t", topic, "-m", "hello", "-q", "2"]
            subprocess.run(publish, check=True, timeout=PATIENCE_S)
            rest = sub.stdout.read()
            timer.cancel()
            self.assertIn(f"{topic} hello", rest)
            self.assertEqual(sub.wait(), 0)

    def test_tcp(self):
        for version in ("mqttv311", "mqttv5"):
            self.round_trip(f"m/tcp/{version}", ["-p", str(self.broker.ports["mqtt"])], version)

    def test_tls(self):
        options = ["-p", str(self.broker.ports["mqtts"]), "--cafile", self.broker.ca]
        self.round_trip("m/tls", options, "mqttv5")


class Paho(WithBroker):
    def client(self, version, transport="tcp", tls=False):
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=version, transport=transport)
        if transport == "websockets":
            client.ws_set_options(path="/mqtt")
        if tls:
            client.tls_set(ca_certs=self.broker.ca, cert_reqs=ssl.CERT_REQUIRED)
        return client

    def round_trip(self, version, port, **how):
        got, subscribed = [], threading.Event()
        sub, pub = self.client(version, **how), self.client(version, **how)
        sub.on_message = lambda client, data, message: got.append((message.topic, message.payload, message.qos))
        sub.on_subscribe = lambda *rest: subscribed.set()
        sub.on_connect = lambda *rest: sub.subscribe("paho/#", 2)
        for client in (sub, pub):
            client.connect("localhost", port)
            client.loop_start()
        try:
            self.assertTrue(subscribed.wait(PATIENCE_S))
            for qos in (0, 1, 2):
                pub.publish(f"paho/{qos}", b"x" * 5000, qos).wait_for_publish(PATIENCE_S)
            eventually("three messages", lambda: len(got) >= 3)
            self.assertEqual(sorted(got), [(f"paho/{qos}", b"x" * 5000, qos) for qos in (0, 1, 2)])
        finally:
            for client in (sub, pub):
                client.disconnect()
                client.loop_stop()

    def test_tcp(self):
        for version in (paho.MQTTv311, paho.MQTTv5):
            self.round_trip(version, self.broker.ports["mqtt"])

    def test_tls(self):
        self.round_trip(paho.MQTTv5, self.broker.ports["mqtts"], tls=True)

    def test_websocket(self):
        self.round_trip(paho.MQTTv311, self.broker.ports["ws"], transport="websockets")

    def test_websocket_over_tls(self):
        self.round_trip(paho.MQTTv5, self.broker.ports["wss"], transport="websockets", tls=True)


class Stream(QuicConnectionProtocol):
    """Collects what comes on each stream."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.received = {}
        self.resets = {}
        self.news = asyncio.Event()

    def quic_event_received(self, event):
        if isinstance(event, StreamDataReceived):
            self.received[event.stream_id] = self.received.get(event.stream_id, b"") + event.data
            self.news.set()
        if isinstance(event, StreamReset):
            self.resets[event.stream_id] = event.error_code
            self.news.set()

    def send(self, stream, data):
        self._quic.send_stream_data(stream, data)
        self.transmit()

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.news.clear()
                await self.news.wait()

    async def wait_for(self, stream, data):
        await self.until(lambda: data in self.received.get(stream, b""))


def text(value):
    return len(value).to_bytes(2, "big") + value


class Aioquic(WithBroker):
    """MQTT 3.1.1 by hand over a QUIC stack that is not ours."""

    def configuration(self):
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"])
        configuration.load_verify_locations(self.broker.ca)
        return configuration

    def dial(self, port=None):
        port = port or self.broker.ports["quic"]
        how = {"configuration": self.configuration(), "create_protocol": Stream}
        return quic_connect("localhost", port, **how)

    async def exchange(self):
        async with self.dial() as quic:
            body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(b"aioquic")
            quic.send(0, bytes([0x10, len(body)]) + body)
            await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            # A second stream subscribes; what it asked for comes back on it.
            body = bytes([0, 1]) + text(b"q/+") + bytes([1])
            quic.send(4, bytes([0x82, len(body)]) + body)
            await quic.wait_for(4, bytes([0x90, 3, 0, 1, 1]))
            body = text(b"q/1") + bytes([0, 7]) + b"over quic"
            quic.send(0, bytes([0x32, len(body)]) + body)
            await quic.wait_for(0, bytes([0x40, 2, 0, 7]))
            await quic.wait_for(4, b"over quic")

    async def publish_on_unidirectional_streams(self):
        async with self.dial() as quic:
            body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(b"one-way")
            quic.send(0, bytes([0x10, len(body)]) + body)
            await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            body = bytes([0, 1]) + text(b"u/+") + bytes([1])
            quic.send(0, bytes([0x82, len(body)]) + body)
            await quic.wait_for(0, bytes([0x90, 3, 0, 1, 1]))
            # More streams than may be open at once, one for each message; all answers come on the control stream.
            for number in range(2, 102):
                stream = quic._quic.get_next_available_stream_id(is_unidirectional=True)
                body = text(b"u/1") + number.to_bytes(2, "big") + b"message %d." % number
                quic._quic.send_stream_data(stream, bytes([0x32, len(body)]) + body, end_stream=True)
                quic.transmit()
                await quic.wait_for(0, bytes([0x40, 2]) + number.to_bytes(2, "big"))
                await quic.wait_for(0, b"message %d." % number)
            self.assertEqual(list(quic.received), [0])

    async def open_streams_with_published_headers(self):
        vectors = json.loads(VECTORS.read_text())
        async with self.dial() as quic:
            body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(b"headers")
            quic.send(0, bytes([0x10, len(body)]) + body)
            await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            for vector in vectors["accepted"]:
                if vector["type"] == "client":
                    stream = quic._quic.get_next_available_stream_id()
                    quic.send(stream, bytes.fromhex(vector["bytes"]) + bytes([0xC0, 0]))
                    await quic.wait_for(stream, bytes([0xD0, 0]))
            for vector in vectors["refused"]:
                stream = quic._quic.get_next_available_stream_id()
                quic.send(stream, bytes.fromhex(vector["bytes"]))
                await quic.until(lambda: stream in quic.resets)
                self.assertEqual(f"{quic.resets[stream]:x}", vector["code"], vector["name"])
            quic.send(0, bytes([0xC0, 0]))
            await quic.wait_for(0, bytes([0xD0, 0]))

    async def return_to_a_named_flow(self):
        hello = text(b"MQTT") + bytes([4, 0, 0, 60]) + text(b"flows")
        async with self.dial() as quic:
            quic.send(0, bytes([0x10, len(hello)]) + hello)
            await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            # Flow 4: its subscriptions and QoS state stay for 1,000 s.
            body = bytes([0, 1]) + text(b"flow/+") + bytes([1])
            quic.send(4, bytes.fromhex("120443e850") + bytes([0x82, len(body)]) + body)
            await quic.wait_for(4, bytes([0x90, 3, 0, 1, 1]))
        command = ["mosquitto_pub", "-h", "localhost", "-p", str(self.broker.ports["mqtt"]), "-q", "1", "-t", "flow/1", "-m", "meanwhile"]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=PATIENCE_S)
        async with self.dial() as quic:
            quic.send(0, bytes([0x10, len(hello)]) + hello)
            await quic.wait_for(0, bytes([0x20, 2, 1, 0]))
            # The same flow, or none (0x02).
            quic.send(4, bytes.fromhex("120443e852"))
            await quic.wait_for(4, b"meanwhile")
            self.assertNotIn(b"meanwhile", quic.received[0])

    async def subscribe_and_change_the_port(self, relay):
        async with self.dial(relay.port) as quic:
            body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(b"moved")
            quic.send(0, bytes([0x10, len(body)]) + body)
            await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            body = bytes([0, 1]) + text(b"large") + bytes([0])
            quic.send(0, bytes([0x82, len(body)]) + body)
            await quic.wait_for(0, bytes([0x90, 3, 0, 1, 0]))
            relay.forget()
            quic.send(0, bytes([0xC0, 0]))
            await quic.wait_for(0, bytes([0xD0, 0]))
            # The client says nothing of its own accord from here on.
            command = ["mosquitto_pub", "-h", "localhost", "-p", str(self.broker.ports["mqtt"]), "-t", "large", "-s"]
            publish = asyncio.to_thread(
                subprocess.run, command, input=b"7" * 100_000 + b"!", check=True, timeout=PATIENCE_S)
            await asyncio.gather(publish, quic.wait_for(0, b"7!"))

    async def ping_through_a_pause(self):
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(self.dial()) for _ in range(10)]
            for number, quic in enumerate(clients):
                # Three seconds of silence are allowed.
                body = text(b"MQTT") + bytes([4, 2, 0, 2]) + text(b"paused-%d" % number)
                quic.send(0, bytes([0x10, len(body)]) + body)
                await quic.wait_for(0, bytes([0x20, 2, 0, 0]))
            self.broker.process.send_signal(signal.SIGSTOP)
            try:
                for _ in range(6):
                    for quic in clients:
                        quic.send(0, bytes([0xC0, 0]))
                    await asyncio.sleep(1)
            finally:
                self.broker.process.send_signal(signal.SIGCONT)
            for quic in clients:
                await quic.wait_for(0, bytes([0xD0, 0] * 6))

    def test_clients_that_ping_while_the_broker_is_paused_stay_connected(self):
        self.run_on_ipv4(self.ping_through_a_pause())

    def test_a_subscriber_at_another_port_gets_large_messages_before_its_next_packet(self):
        relay = Relay(self.broker.ports["quic"])
        self.addCleanup(relay.close)
        self.run_on_ipv4(self.subscribe_and_change_the_port(relay))

    def test_unidirectional_streams_are_answered_on_the_control_stream(self):
        self.run_on_ipv4(self.publish_on_unidirectional_streams())

    def test_two_streams(self):
        self.run_on_ipv4(self.exchange())

    def test_streams_with_the_published_headers_are_accepted_and_refused(self):
        self.run_on_ipv4(self.open_streams_with_published_headers())

    def test_a_named_flow_keeps_its_subscription_and_messages(self):
        self.run_on_ipv4(self.return_to_a_named_flow())

    def run_on_ipv4(self, what):
        # localhost may be ::1 first; the broker listens on 127.0.0.1.
        original = asyncio.BaseEventLoop.getaddrinfo

        async def ipv4(loop, host, *rest, **named):
            return await original(loop, "127.0.0.1" if host == "localhost" else host, *rest, **named)

        asyncio.BaseEventLoop.getaddrinfo = ipv4
        try:
            asyncio.run(what)
        finally:
            asyncio.BaseEventLoop.getaddrinfo = original


if __name__ == "__main__":
    unittest.main()
