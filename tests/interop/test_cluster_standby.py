"""What MQTT clients get at a node that stands by with `[cluster] standby = "redirect"`: the address of the node that
serves, by each transport (MQTT 5 section 4.11), and what strangers get."""

import re
import socket
import ssl
import subprocess
import threading
import unittest

import paho.mqtt.client as paho
from broker import binary, eventually
from cluster_nodes import Node, begin, logs, wait_serving
from nats_servers import Servers
from test_cluster import setUpModule  # noqa: F401  (a program without the feature)

USE_ANOTHER_SERVER, UNAVAILABLE = 0x9C, 0x88
OTHERS = ["mqtts", "ws", "wss", "quic"]


class Redirecting(Node):
    """A node that redirects, and has listeners of each kind with ports that the system chooses."""

    def __init__(self, servers, name):
        listeners = [f'FULMAR_LISTENERS__{kind.upper()}=["127.0.0.1:0"]' for kind in OTHERS]
        super().__init__(servers, name, 'standby = "redirect"', development=True,
                         prefix=("env", "FULMAR_LIMITS__CONNECT_TIMEOUT_S=10", *listeners))

    def bound(self, state):
        """The ports in the last line that begins with `ready` or `standby`, by listener."""
        lines = [line for line in self.log.read_text().splitlines() if line.startswith(state + " ")]
        return {name: int(port) for name, port in re.findall(r"(\w+)=127\.0\.0\.1:(\d+)", lines[-1])} if lines else {}


def answer(port, transport="mqtt", protocol=paho.MQTTv5):
    """The reason code of CONNACK, and its Server Reference."""
    got, done = [], threading.Event()
    kind = "websockets" if transport in ("ws", "wss") else "tcp"
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=protocol, transport=kind, reconnect_on_failure=False)
    if transport in ("mqtts", "wss"):
        client.tls_set(cert_reqs=ssl.CERT_NONE)
        client.tls_insecure_set(True)

    def on_connect(client, data, flags, reason, properties):
        got.append((reason.value, getattr(properties, "ServerReference", None)))
        done.set()

    client.on_connect = on_connect
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        if not done.wait(30):
            raise AssertionError(f"no CONNACK by {transport}")
        return got[0]
    finally:
        client.disconnect()
        client.loop_stop()


class Redirect(unittest.TestCase):
    def setUp(self):
        self.servers = Servers(1)
        self.addCleanup(self.servers.close)
        self.nodes = [Redirecting(self.servers, name) for name in ("n1", "n2")]
        for node in self.nodes:
            self.addCleanup(node.close)
        self.serves, [self.stands_by] = begin(self.nodes)
        eventually("the other one stands by", lambda: f"{self.serves.name} at" in self.stands_by.ready()[1])
        eventually("the ready line", lambda: self.serves.bound("ready"))

    def subscriber(self, url, *options):
        process = subprocess.Popen([binary(), "sub", url, *options, "-t", "a/b", "--count", "1"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.kill)
        return process

    def test_clients_are_sent_to_the_node_that_serves(self):
        ready, standby = self.serves.bound("ready"), self.stands_by.bound("standby")
        self.assertEqual(set(ready), {"mqtt", "http", *OTHERS})
        self.assertEqual(set(standby), set(ready))
        for kind in ["mqtt", "mqtts", "ws", "wss"]:
            reason, reference = answer(standby[kind], kind)
            self.assertEqual((reason, reference), (USE_ANOTHER_SERVER, f"127.0.0.1:{ready[kind]}"), kind)
        # 3.1.1 has no reference; Paho shows its return code 3 as the reason code of 5.0.
        self.assertEqual(answer(standby["mqtt"], protocol=paho.MQTTv311), (UNAVAILABLE, None))
        self.assertEqual(self.stands_by.ready()[0], 503)

    def test_our_own_clients_follow(self):
        standby = self.stands_by.bound("standby")
        for kind, options in [("mqtt", []), ("mqtts", ["--insecure"]), ("ws", []), ("quic", ["--insecure"])]:
            subscriber = self.subscriber(f"{kind}://127.0.0.1:{standby[kind]}", *options)
            publish = [binary(), "pub", f"mqtt://127.0.0.1:{standby['mqtt']}", "-t", "a/b", "-m", kind, "-q", "1"]

            def received():
                subprocess.run(publish, check=True, timeout=30, capture_output=True)
                return subscriber.poll() is not None

            eventually(f"a message by {kind}", received, 30)
            self.assertEqual(subscriber.stdout.read(), f"{kind}\n", subscriber.stderr.read())

    def test_a_stranger_that_says_nothing_is_disconnected(self):
        with socket.create_connection(("127.0.0.1", self.stands_by.mqtt), 10) as stranger:
            stranger.settimeout(30)
            self.assertEqual(stranger.recv(1), b"")

    def test_the_ports_stay_and_without_a_node_that_serves_nobody_is_named(self):
        standby = self.stands_by.bound("standby")
        self.serves.kill()
        wait_serving(self.nodes)
        eventually("the ready line", lambda: self.stands_by.bound("ready"))
        self.assertEqual(self.stands_by.bound("ready"), standby)
        self.assertEqual(answer(standby["mqtts"], "mqtts"), (0, None))
        self.serves.start()
        eventually("the killed node stands by", lambda: f"{self.stands_by.name} at" in self.serves.ready()[1])
        port = self.serves.mqtt
        self.assertEqual(answer(port), (USE_ANOTHER_SERVER, f"127.0.0.1:{self.stands_by.mqtt}"))
        self.servers.kill(0)
        try:
            eventually("nobody is named", lambda: answer(port) == (UNAVAILABLE, None), 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs(self.nodes)}") from None


if __name__ == "__main__":
    unittest.main()
