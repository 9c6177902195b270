"""Data folders of the program of 29 November 2026 (`old_data.py` wrote them; it was killed, not stopped): today's opens them,
everybody logs in as before and has no more rights than before, and what was acknowledged arrives once.

FULMAR_OLD_DATA names another archive, such as one with 10,000 meters."""

import collections
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import unittest
import urllib.error
import urllib.request

import paho.mqtt.client as paho

from broker import Broker, binary, eventually
from old_data import PASSWORD, QUEUED, SETTINGS, STORED_PASSWORD, WAITING, connect

ARCHIVE = os.environ.get("FULMAR_OLD_DATA", pathlib.Path(__file__).with_name("data-2026-11-29.tar.xz"))


class OldData(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        with tarfile.open(ARCHIVE) as tar:
            tar.extractall(folder.name, filter="data")
        cls.told = json.loads((cls.folder / "told.json").read_text())

    def broker(self, folder: str, settings="") -> Broker:
        def prepare(data):
            shutil.copytree(self.folder / folder, data, dirs_exist_ok=True)

        broker = Broker(SETTINGS + settings, prepare=prepare)
        self.addCleanup(broker.close)
        self.tls = ssl.create_default_context(cafile=broker.ca)
        return broker

    def call(self, broker: Broker, method: str, path: str, token="", body=None):
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        address = f"https://localhost:{broker.ports['https']}{path}"
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(address, data, headers, method=method)
        with urllib.request.urlopen(request, context=self.tls) as answer:
            return json.loads(answer.read())

    def ctl(self, broker: Broker, *words) -> str:
        line = [binary(), "ctl", *words, "--data", str(broker.data)]
        return subprocess.run(line, text=True, check=True, stdout=subprocess.PIPE).stdout

    def log_in(self, broker: Broker, user: str, password: str) -> int:
        """What the platform says to a login."""
        try:
            self.call(broker, "POST", "/api/v1/session", body={"user": user, "password": password})
            return 200
        except urllib.error.HTTPError as error:
            return error.code

    def mqtt(self, broker: Broker, user: str, password: str):
        """The reason code of CONNACK."""
        codes = []
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=f"ask-{user}", protocol=paho.MQTTv5)
        client.username_pw_set(user, password)
        client.on_connect = lambda *rest: codes.append(rest[3].value)
        client.connect("127.0.0.1", broker.ports["mqtt"])
        client.loop_start()
        eventually("CONNACK", lambda: codes)
        client.disconnect()
        client.loop_stop()
        return codes[0]

    def returning(self, broker: Broker, name: str, user: str, password: str) -> collections.Counter:
        """What waits for a client that returns, by topic and payload; connected until the test ends."""
        got = collections.Counter()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        client.on_message = lambda c, d, message: got.update([(message.topic, message.payload.decode())])
        client.username_pw_set(user, password)
        client.connect("127.0.0.1", broker.ports["mqtt"], clean_start=False)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        return got

    def test_everybody_logs_in_as_before(self):
        broker = self.broker("server")
        for user in ("ann", "north-admin", "north-reader"):
            self.assertEqual(self.log_in(broker, user, PASSWORD), 200, user)
            self.assertEqual(self.log_in(broker, user, STORED_PASSWORD), 401, user)
            self.assertEqual(self.mqtt(broker, user, PASSWORD), 0, user)
        for user in ("bob", "carl"):
            self.assertEqual(self.mqtt(broker, user, STORED_PASSWORD), 0, user)
        self.assertEqual(self.log_in(broker, "bob", STORED_PASSWORD), 401)
        # One name of two people: a password opens what it opened.
        self.assertEqual(self.log_in(broker, "carl", PASSWORD), 200)
        self.assertEqual(self.log_in(broker, "carl", STORED_PASSWORD), 401)
        self.assertNotEqual(self.mqtt(broker, "carl", PASSWORD), 0)
        # A removed user, and a banned one.
        self.assertNotEqual(self.mqtt(broker, "gone", STORED_PASSWORD), 0)
        self.assertEqual(self.mqtt(broker, "banned", STORED_PASSWORD), 0x8A)
        # Tokens: of a device, of the administration.
        self.assertEqual(self.mqtt(broker, "gw-1", self.told["device"]), 0)
        self.call(broker, "GET", "/api/v1/north/meter?limit=1", self.told["device"])
        self.call(broker, "GET", "/api/admin/v1/clients", self.told["monitor"])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.call(broker, "GET", "/api/admin/v1/users", self.told["monitor"])
        self.assertEqual(refused.exception.code, 403)
        self.assertEqual(broker.stop(), 0)

    def test_what_waited_arrives_once(self):
        broker = self.broker("server")
        wanted = {(topic, str(n)) for topic in ("sensors/a", "sensors/b") for n in range(WAITING)}
        wanted.add(("sensors/kept", "kept"))
        bob = self.returning(broker, "bob", "bob", STORED_PASSWORD)
        eventually("what waits for bob", lambda: wanted <= set(bob))
        commands = {("fulmar/north/command/gw-1/valve/open", str(n)) for n in range(WAITING)}
        device = self.returning(broker, "gw-1", "gw-1", self.told["device"])
        eventually("what waits for the device", lambda: commands <= set(device))
        # Sent last, and so behind all that could come twice.
        office = connect(broker.ports["mqtt"], "another", "north-admin", PASSWORD)
        office.publish("fulmar/north/command/gw-1/valve/open", "last", 1)
        eventually("the last one", lambda: ("fulmar/north/command/gw-1/valve/open", "last") in device)
        office.disconnect()
        office.loop_stop()
        self.assertEqual(set(bob.values()) | set(device.values()), {1})
        kept = collections.Counter()
        reader = connect(broker.ports["mqtt"], "carl", "carl", STORED_PASSWORD)
        reader.on_message = lambda c, d, message: kept.update([message.payload])
        reader.subscribe("sensors/kept", 1)
        eventually("the retained message", lambda: kept)
        reader.disconnect()
        reader.loop_stop()
        self.assertEqual(broker.stop(), 0)

    def test_meters_and_the_log_of_changes_are_there(self):
        broker = self.broker("server")
        meters, after = set(), ""
        while after is not None:
            page = self.call(broker, "GET", f"/api/v1/north/meter?limit=500{after}", self.told["admin"])
            meters.update(meter["id"] for meter in page["items"])
            after = page["next"] and f"&cursor={page['next']}"
        self.assertEqual(len(meters), self.told["meters"])
        users = self.call(broker, "GET", "/api/v1/north/user", self.told["admin"])["items"]
        roles = {user["name"]: user["role"] for user in users}
        self.assertEqual(roles, {"north-admin": "admin", "north-reader": "reader", "carl": "viewer", "gw-1": "device"})
        names = {line.split()[0] for line in self.ctl(broker, "users", "list").splitlines()}
        self.assertLessEqual({"bob", "carl", "root"}, names)
        self.assertIn("banned", self.ctl(broker, "clients", "bans"))
        line = [binary(), "audit", "--data", str(broker.data)]
        changes = subprocess.run(line, text=True, stdout=subprocess.PIPE, check=True).stdout
        for action in ("user.add", "role.add"):
            self.assertIn(action, changes)
        self.assertEqual(broker.stop(), 0)

    def test_a_gateway_sends_what_it_has(self):
        upstream = Broker()
        self.addCleanup(upstream.close)
        got = []
        above = connect(upstream.ports["mqtt"], "above")
        above.on_message = lambda c, d, message: got.append(message.payload.decode())
        subscribed = []
        above.on_subscribe = lambda *rest: subscribed.append(1)
        above.subscribe("sensor/#", 1)
        eventually("the subscription", lambda: subscribed)
        up = f'[upstream]\nurl = "mqtt://127.0.0.1:{upstream.ports["mqtt"]}"\nname = "gw"\n[[upstream.up]]\nfilter = "sensor/#"\n'
        gateway = self.broker("gateway", up)
        device = connect(gateway.ports["mqtt"], "device")
        device.publish("sensor/a", "last", 1).wait_for_publish(60)
        eventually("the last reading", lambda: "last" in got)
        device.disconnect()
        above.disconnect()
        for client in (device, above):
            client.loop_stop()
        self.assertEqual(got, [*map(str, range(QUEUED)), "last"])
        self.assertEqual(gateway.stop(), 0)


if __name__ == "__main__":
    unittest.main()
