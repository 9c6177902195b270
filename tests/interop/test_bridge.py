"""A mosquitto broker as a bridge to ours, over TCP and TLS, in both versions of MQTT: messages cross both
ways, none comes back to where it was published, and what is published while ours is down arrives once when it
is back. The bridge has mosquitto's own settings: it connects as the protocol version that only bridges have, and
tells in our $SYS whether it is there.

mosquitto's command line clients have WebSocket only since 2.1, which Debian 12 does not carry. Paho's for
Python and Go, and MQTT.js, stand for independent clients there: three implementations of WebSocket."""

import getpass
import pathlib
import subprocess
import tempfile
import unittest

import paho.mqtt.client as paho

from broker import PATIENCE_S, Broker, eventually


class Ours:
    """A client of our broker."""

    def __init__(self, port: int):
        self.got = []
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="ours", clean_session=False)
        self.client.reconnect_delay_set(1, 1)
        self.states = []
        self.client.on_message = self.on_message
        self.subscribed = False

        def on_subscribe(*rest):
            self.subscribed = True

        self.client.on_subscribe = on_subscribe
        filters = [("up/#", 2), ("both/#", 2), ("$SYS/broker/connection/mosquitto-bridge/state", 1)]
        self.client.on_connect = lambda *rest: self.client.subscribe(filters)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()

    def on_message(self, client, data, message):
        about_bridge = message.topic.startswith("$SYS/")
        (self.states if about_bridge else self.got).append(message.payload.decode())

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


class Bridge(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # A path for a socket must be short, and temporary folders are.
        self.socket = self.folder / "socket"
        self.broker = Broker()
        self.addCleanup(self.broker.close)

    def start_bridge(self, kind: str, version: str):
        lines = [
            f"listener 0 {self.socket}",
            "allow_anonymous true",
            # Run by root it would give up its rights, and then could not read what is ours.
            f"user {getpass.getuser()}",
            "connection to-ours",
            f"address localhost:{self.broker.ports[kind]}",
            f"bridge_protocol_version {version}",
            "remote_clientid mosquitto-bridge",
            "cleansession false",
            "restart_timeout 1",
            "topic up/# out 2",
            "topic down/# in 2",
            "topic both/# both 2",
        ]
        if kind == "mqtts":
            lines.append(f"bridge_cafile {self.broker.ca}")
        config = self.folder / "mosquitto.conf"
        config.write_text("\n".join(lines) + "\n")
        log = open(self.folder / "log", "wb")
        self.addCleanup(log.close)
        self.bridge = subprocess.Popen(["mosquitto", "-c", str(config)], stdout=log, stderr=log)
        self.addCleanup(self.bridge.wait)
        self.addCleanup(self.bridge.kill)
        eventually("mosquitto", self.socket.exists)

    def command(self, name: str, *options: str) -> list[str]:
        return ["stdbuf", "-oL", name, "--unix", str(self.socket), "-q", "2", *options]

    def publish_at_bridge(self, text: str, topic: str = "up/meter"):
        subprocess.run(self.command("mosquitto_pub", "-t", topic, "-m", text), check=True, timeout=PATIENCE_S)

    def play(self, kind: str, version: str):
        self.start_bridge(kind, version)
        ours = Ours(self.broker.ports["mqtt"])
        self.addCleanup(ours.close)
        eventually("our subscription", lambda: ours.subscribed)
        theirs = subprocess.Popen(
            self.command("mosquitto_sub", "-t", "down/#", "-t", "both/#", "-d", "-F", "got %p"),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(theirs.stdout.close)
        self.addCleanup(theirs.wait)
        self.addCleanup(theirs.kill)
        for line in theirs.stdout:
            if "received SUBACK" in line:
                break
        self.publish_at_bridge("upward")
        eventually("the message from the bridge", lambda: ours.got == ["upward"])
        eventually("the bridge's state", lambda: ours.states[-1:] == ["1"])
        self.publish_at_bridge("once", "both/meter")
        eventually("what goes both ways", lambda: ours.got[1:] == ["once"])
        ours.client.publish("down/meter", "downward", 2).wait_for_publish(PATIENCE_S)
        theirs_got = (line for line in theirs.stdout if line.startswith("got"))
        self.assertEqual([next(theirs_got), next(theirs_got)], ["got once\n", "got downward\n"])
        ours.got.clear()
        self.broker.kill()
        for number in range(20):
            self.publish_at_bridge(f"meanwhile {number}")
        self.broker.start()
        eventually("what was published meanwhile", lambda: len(ours.got) >= 20)
        self.publish_at_bridge("end")
        eventually("the end", lambda: ours.got[-1] == "end")
        self.assertEqual(ours.got, [*[f"meanwhile {number}" for number in range(20)], "end"])
        self.bridge.kill()
        eventually("the bridge's will", lambda: ours.states[-1] == "0")

    def test_mqtt_3_1_1(self):
        self.play("mqtt", "mqttv311")

    def test_mqtt_5(self):
        self.play("mqtt", "mqttv50")

    def test_tls(self):
        self.play("mqtts", "mqttv50")


if __name__ == "__main__":
    unittest.main()
