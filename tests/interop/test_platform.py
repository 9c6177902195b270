"""The platform as a van, an office and a stranger see it: Python's own HTTP client and paho, none of it ours."""

import json
import ssl
import subprocess
import unittest
import urllib.error
import urllib.request

import paho.mqtt.client as mqtt

from broker import Broker, binary, eventually

PASSWORD = "correct horse"
# An OMS example without encryption: SEN 33225544, 123.529 m3.
FRAME = "1844AE4C4455223368077A55000000041389E20100023B0000"


class Platform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.broker = Broker()
        cls.addClassCleanup(cls.broker.close)
        cls.tls = ssl.create_default_context(cafile=cls.broker.ca)
        for twin in ("north", "south"):
            cls.command("twin", "add", twin)
            for role in ("admin", "device", "viewer"):
                cls.command("user", "add", f"{twin}-{role}", "--twin", twin, "--role", role)

    @classmethod
    def command(cls, *words):
        line = [binary(), *words, "--data", str(cls.broker.data)]
        subprocess.run(line, input=PASSWORD + "\n", text=True, check=True)

    def call(self, method, path, body=None, token=None):
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        address = f"https://localhost:{self.broker.ports['https']}{path}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address, method=method, headers=headers, data=data)
        with urllib.request.urlopen(request, context=self.tls) as answer:
            return json.loads(answer.read() or b"null")

    def log_in(self, user):
        # The running server sees what the command line made within half a second.
        tokens = []

        def done():
            try:
                tokens.append(self.call("POST", "/api/v1/session", {"user": user, "password": PASSWORD})["token"])
            except urllib.error.HTTPError as error:
                if error.code != 401:
                    raise
            return bool(tokens)

        eventually(f"the login of {user}", done)
        return tokens[0]

    def client(self, user, token, filters=()):
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"test-{user}", protocol=mqtt.MQTTv5)
        client.username_pw_set(user, token)
        client.heard, client.codes, client.connack = [], [], []
        client.on_message = lambda c, _, message: c.heard.append((message.topic, json.loads(message.payload)))
        client.on_subscribe = lambda c, _, mid, codes, properties: c.codes.extend(code.value for code in codes)

        def connected(c, _, flags, code, properties):
            c.connack.append(code.value)
            if filters:
                c.subscribe([(filter, 1) for filter in filters])

        client.on_connect = connected
        client.connect("127.0.0.1", self.broker.ports["mqtt"])
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        eventually(f"{user}'s CONNACK", lambda: client.connack)
        eventually(f"{user}'s SUBACK", lambda: len(client.codes) == len(filters) or client.connack != [0])
        return client

    def test_a_van_publishes_frames_and_only_its_twin_hears_of_them(self):
        users = ("north-admin", "north-device", "north-viewer", "south-admin")
        admin, device, viewer, stranger = [self.log_in(user) for user in users]
        self.call("POST", "/api/v1/north/meter", {"id": "m1", "address": "SEN-33225544-68-07"}, admin)
        office = self.client("north-viewer", viewer, ["fulmar/north/reading/+"])
        van = self.client("north-device", device, ["fulmar/north/heard/+", "fulmar/north/reading/+"])
        other = self.client("south-admin", stranger, ["fulmar/north/#", "fulmar/+/reading/+", "#"])
        self.assertEqual(office.codes, [1])
        self.assertEqual(van.codes, [1, 0x87])
        self.assertEqual(other.codes, [0x87, 0x87, 0x87])
        anybody = self.client(None, None, ["#", "+/north/#"])
        self.assertEqual(anybody.codes, [1, 1], "on loopback anybody may subscribe to what is nobody's")
        self.assertEqual(self.client("north-viewer", stranger).connack, [0x86], "a token is its own user's")
        frame = {"hex": FRAME, "at": "2026-11-21T10:00:00Z", "rssi_dbm": -70, "mode": "T1"}
        topic, sent = "fulmar/north/receiver/van-1/frame", json.dumps(frame)

        def heard():
            # Again and again: the platform's own client comes when there is a first user.
            van.publish(topic, sent, qos=1)
            return office.heard and len(van.heard) > 1

        eventually("the reading, and its frame twice", heard)
        topic, reading = office.heard[0]
        self.assertEqual((topic, reading["value"]), ("fulmar/north/reading/m1", 123.529))
        self.assertNotIn("value", van.heard[0][1])
        stored = self.call("GET", "/api/v1/north/reading", token=admin)["items"]
        self.assertEqual([item["id"] for item in stored], [reading["id"]])
        self.assertEqual(other.heard, [])
        anybody.publish("home/door", json.dumps("open"), qos=1)
        eventually("what is everybody's", lambda: anybody.heard)
        self.assertEqual(anybody.heard, [("home/door", "open")], "wildcards do not reach the platform's topics")
        self.call("DELETE", "/api/v1/session", token=viewer)
        self.assertEqual(self.client("north-viewer", viewer).connack, [0x86], "a token that was given back")
