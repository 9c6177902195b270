"""Clients of a cluster under trouble: Paho's in Python, and in Go over quic-go; publishers that stay at one node; and a
session that is away until the end.

Payloads are CLIENT QOS . NUMBER ; as in `p2.17;`, so that they can be found in the log."""

import collections
import os
import socket
import struct
import subprocess
import threading
import time

import paho.mqtt.client as paho
from broker import eventually
from cluster_nodes import serving
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho_client import Client

PATIENCE_S = 120
TOKEN = rb"[pg][12]\.\d+;"
# Publications at once, of each publisher in turn; then slowly on, so that there is always one that waits.
SLOWLY_PER_S = 20
# Paho looks again so long after it was refused.
AGAIN_S = 0.25
FOREVER = 0xFFFFFFFF
# Packet identifier not found.
NOT_FOUND = 0x92


class AddressList(Client):
    """A client with a list of addresses: it tries them in turn, beginning behind the last one. The kernel accepts
    connections for a paused node, too."""

    addresses, at = (), 0

    def reconnect(self):
        for _ in self.addresses:
            self.at = (self.at + 1) % len(self.addresses)
            try:
                socket.create_connection(self.addresses[self.at], 0.2).close()
            except OSError:
                continue
            self._host, self._port = self.addresses[self.at]
            break
        return super().reconnect()


def lasting_client(name, nodes):
    """A client whose session outlives its connections, at whichever node serves."""
    made = AddressList(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    made.addresses = [(node.host, node.mqtt) for node in nodes]
    made.reconnect_delay_set(AGAIN_S, AGAIN_S)
    made.connect_timeout = 2
    made.max_queued_messages_set(0)
    made.max_inflight_messages_set(100)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = FOREVER
    at = serving(nodes)
    made.connect(at.host, at.mqtt, keepalive=2, clean_start=False, properties=properties)
    return made


class Traffic:
    """A publisher and a subscriber at one QoS, what each has seen, and when."""

    letter = None

    def __init__(self, qos, messages):
        self.qos, self.messages = qos, messages
        self.got, self.order = collections.Counter(), []
        # Numbers, and the times of their acknowledgements.
        self.acknowledged, self.times = set(), []
        self.unknown, self.refused = set(), []
        self.sent = self.wanted = 0
        self.ending = False

    def begin(self):
        self.thread = threading.Thread(target=self.pump)
        self.thread.start()

    def payload(self, number):
        return f"{self.letter}{self.qos}.{number};"

    def number(self, payload):
        head, number = payload.removesuffix(";").split(".")
        assert head == f"{self.letter}{self.qos}", payload
        return int(number)

    def receive(self, payload):
        number = self.number(payload)
        self.got[number] += 1
        if self.got[number] == 1:
            self.order.append(number)

    def acknowledge(self, number):
        self.acknowledged.add(number)
        self.times.append(time.monotonic())

    def under_way(self):
        return self.sent - len(self.acknowledged) - len(self.unknown) - len(self.refused)

    def pump(self):
        slowly_at = time.monotonic()
        while not self.ending:
            if time.monotonic() >= slowly_at:
                slowly_at = time.monotonic() + 1 / SLOWLY_PER_S
                self.publish(1)
            if self.sent < self.wanted and self.may_publish():
                self.send(self.sent, self.payload(self.sent))
                self.sent += 1
            else:
                time.sleep(0.002)

    def publish(self, count):
        """So many more than are under way."""
        self.wanted = min(max(self.wanted, self.sent) + count, self.messages)

    def lane(self, number):
        """Within one, order is kept."""
        return 0

    def longest_gap(self, began, ended):
        """Longest time without an acknowledgement that touches this time."""
        times = [at for at in self.times if at < began][-1:] + [at for at in self.times if began <= at]
        gaps = [(b - a) for a, b in zip(times, times[1:]) if b > began and a < ended]
        return max(gaps, default=0)

    def is_settled(self):
        return self.sent == self.messages and self.under_way() == 0

    def check(self, test):
        name = f"{type(self).__name__}, QoS {self.qos}"
        eventually(f"acknowledgements: {name}", self.is_settled, PATIENCE_S)
        eventually(f"messages: {name}", lambda: self.acknowledged <= self.got.keys(), PATIENCE_S)
        self.compare(test, name, self.got, self.order)

    def compare(self, test, name, got, order):
        test.assertEqual(self.refused, [], f"refused: {name}")
        missing = self.acknowledged - got.keys()
        test.assertEqual(missing, set(), f"acknowledged and lost: {name}")
        by_lane = collections.defaultdict(list)
        for number in order:
            by_lane[self.lane(number)].append(number)
        for lane, numbers in by_lane.items():
            late = [(a, b) for a, b in zip(numbers, numbers[1:]) if b < a]
            test.assertEqual(late, [], f"order: {name}, lane {lane}")
        if self.qos == 2:
            twice = {number: count for number, count in got.items() if count > 1}
            test.assertEqual(twice, {}, f"delivered more than once: {name}")


class Paho(Traffic):
    """Paho 2.2 repeats everything at once when it is connected again, more than the broker's Receive Maximum if there is
    more, and publishes new messages in between. So there is never much, and after a connection has ended nothing new
    until all of it is acknowledged.
    """

    letter = "p"
    OPEN = 50

    def __init__(self, nodes, qos, messages):
        super().__init__(qos, messages)
        subscribed, self.settled = threading.Event(), True
        self.sub = lasting_client(f"paho-sub-{qos}", nodes)
        self.sub.on_message = lambda client, data, message: self.receive(message.payload.decode())
        self.sub.on_subscribe = lambda *rest: subscribed.set()
        self.sub.subscribe(f"kill/p/{qos}", qos)
        self.sub.loop_start()
        if not subscribed.wait(30):
            raise AssertionError("no SUBACK")
        self.pub = lasting_client(f"paho-pub-{qos}", nodes)
        self.pub.on_publish = self.on_publish
        self.pub.on_disconnect = self.on_disconnect
        self.pub.loop_start()
        self.begin()

    def on_publish(self, client, data, mid, reason, *rest):
        # An identifier is not found if a PUBREL is repeated whose PUBCOMP was lost.
        if reason.is_failure and reason.value != NOT_FOUND:
            self.refused.append(str(reason))
            return
        # This client's identifiers go up by one, from 1 to 65535.
        self.acknowledge(mid - 1 + 65535 * round((self.sent - mid) / 65535))

    def on_disconnect(self, *rest):
        self.settled = False

    def may_publish(self):
        self.settled = self.settled or self.under_way() == 0
        return self.settled and self.under_way() < self.OPEN and self.pub.is_connected()

    def send(self, number, payload):
        self.pub.publish(f"kill/p/{self.qos}", payload, self.qos)

    def end(self):
        self.ending = True
        self.thread.join()
        for made in (self.pub, self.sub):
            made.loop_stop()
            made.disconnect()


class QuicGo(Traffic):
    """tests/interop/go/soak: paho.golang over quic-go. A publication whose connection breaks is sent again by itself, and
    not known to be acknowledged."""

    letter = "g"
    LANES = 16

    def __init__(self, nodes, qos, messages, ca):
        super().__init__(qos, messages)
        addresses = ",".join(f"{node.host}:{node.quic}" for node in nodes)
        topic = f"kill/g/{qos}"
        self.sub = self.run("sub", f"go-sub-{qos}", addresses, ca, f"{topic}/+")
        if self.sub.stdout.readline() != "subscribed\n":
            raise AssertionError("no SUBACK")
        self.pub = self.run("pub", f"go-pub-{qos}", addresses, ca, f"{topic}/%d", str(qos))
        for target in (self.read_messages, self.read_acknowledgements):
            threading.Thread(target=target, daemon=True).start()
        self.begin()

    @staticmethod
    def run(*words):
        environment = {**os.environ, "SOAK_IDLE": "3s"}
        return subprocess.Popen([os.environ["FULMAR_SOAK_GO"], *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                text=True, env=environment)

    def lane(self, number):
        return number % self.LANES

    def read_messages(self):
        for line in self.sub.stdout:
            self.receive(line.split()[1])

    def read_acknowledgements(self):
        for line in self.pub.stdout:
            word, payload = line.split()
            if word == "acknowledged":
                self.acknowledge(self.number(payload))
            else:
                self.unknown.add(self.number(payload))

    def may_publish(self):
        return self.under_way() < 2 * self.LANES

    def send(self, number, payload):
        self.pub.stdin.write(payload + "\n")
        self.pub.stdin.flush()

    def end(self):
        self.ending = True
        for made in (self.pub, self.sub):
            made.kill()
            made.wait()
        self.thread.join()


class Absent:
    """A session with subscriptions to everything that is away until the end: each message needs its place in the log."""

    def __init__(self, nodes):
        self.nodes = nodes
        subscribed = threading.Event()
        client = lasting_client("absent", nodes)
        client.on_subscribe = lambda *rest: subscribed.set()
        client.subscribe("kill/#", 2)
        client.loop_start()
        if not subscribed.wait(30):
            raise AssertionError("no SUBACK")
        client.disconnect()
        client.loop_stop()

    def check(self, test, traffic):
        by_head = {f"{one.letter}{one.qos}": (one, collections.Counter(), []) for one in traffic}

        def on_message(client, data, message):
            payload = message.payload.decode()
            one, got, order = by_head[payload.split(".")[0]]
            number = one.number(payload)
            got[number] += 1
            if got[number] == 1:
                order.append(number)

        client = lasting_client("absent", self.nodes)
        client.on_message = on_message
        client.loop_start()
        try:
            for one, got, _ in by_head.values():
                eventually("messages of the session that was away",
                           lambda: one.acknowledged <= got.keys(), 5 * PATIENCE_S)
        finally:
            client.disconnect()
            client.loop_stop()
        for one, got, order in by_head.values():
            one.compare(test, f"session that was away: {type(one).__name__}, QoS {one.qos}", got, order)


class Pinned:
    """Publishes at one node at QoS 1, to a topic that nobody has: only the lease keeps that from being acknowledged by two
    nodes. `acknowledged` has when each was sent, in seconds since the Unix epoch."""

    PAUSE_S = 0.02
    # Longer than a node without an answer from NATS keeps its connections.
    PATIENCE_S = 45

    def __init__(self, node):
        self.node, self.acknowledged, self.ending = node, [], False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.ending:
            try:
                with socket.create_connection((self.node.host, self.node.mqtt), 0.5) as connection:
                    self.publish(connection)
            except OSError:
                time.sleep(0.1)

    def publish(self, connection):
        name = f"pinned-{self.node.name}".encode()
        connect = b"\x00\x04MQTT\x04\x02\x00\x00" + struct.pack(">H", len(name)) + name
        connection.sendall(bytes([0x10, len(connect)]) + connect)
        connection.settimeout(1)
        if self.receive(connection) != b"\x20\x02\x00\x00":
            return
        topic, number = b"pinned", 0
        while not self.ending:
            number = number % 65535 + 1
            body = struct.pack(">H", len(topic)) + topic + struct.pack(">H", number)
            at = time.time()
            connection.sendall(bytes([0x32, len(body)]) + body)
            if self.receive(connection) != b"\x40\x02" + struct.pack(">H", number):
                return
            self.acknowledged.append(at)
            time.sleep(self.PAUSE_S)

    def receive(self, connection):
        got, end = b"", time.monotonic() + self.PATIENCE_S
        while len(got) < 4 and time.monotonic() < end and not self.ending:
            try:
                part = connection.recv(4 - len(got))
            except TimeoutError:
                continue
            if not part:
                break
            got += part
        return got

    def end(self):
        self.ending = True
        self.thread.join()
