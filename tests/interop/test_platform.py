"""The platform as a van, an office and a stranger see it: Python's own HTTP client and paho, none of it ours."""

import json
import urllib.error

import paho.mqtt.client as mqtt

from api import Api
from broker import eventually

# An OMS example without encryption: SEN 33225544, 123.529 m3.
FRAME = "1844AE4C4455223368077A55000000041389E20100023B0000"


class Platform(Api):
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
        client.gone = []
        client.on_disconnect = lambda c, _, flags, code, properties: c.gone.append(code.value)
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
        stored = self.call("GET", "/api/v1/north/reading?meter=m1", token=admin)["items"]
        self.assertEqual([item["id"] for item in stored], [reading["id"]])
        self.assertEqual(other.heard, [])
        anybody.publish("home/door", json.dumps("open"), qos=1)
        eventually("what is everybody's", lambda: anybody.heard)
        self.assertEqual(anybody.heard, [("home/door", "open")], "wildcards do not reach the platform's topics")
        self.call("DELETE", "/api/v1/session", token=viewer)
        eventually("the end of a connection whose token was given back", lambda: office.gone)
        self.assertEqual(office.gone[0], 0x87)
        self.assertEqual(self.client("north-viewer", viewer).connack, [0x86], "a token that was given back")
        self.assertEqual(van.gone + other.gone, [], "other tokens are as good as before")

    def test_who_may_less_than_before_hears_no_more(self):
        admin, viewer = self.log_in("north-admin"), self.log_in("north-viewer")
        office = self.client("north-viewer", viewer, ["fulmar/north/reading/+"])
        self.call("PATCH", "/api/v1/north/user/north-viewer", {"role": "reader"}, admin)
        eventually("the end of a connection with a subscription that is too much now", lambda: office.gone)
        again = self.client("north-viewer", viewer, ["fulmar/north/reading/+", "fulmar/north/heard/+"])
        self.assertEqual(again.codes, [0x87, 1])
        self.call("PATCH", "/api/v1/north/user/north-viewer", {"role": "viewer"}, admin)

    def test_commands_and_the_names_of_devices_are_their_owners(self):
        reader, device = self.log_in("north-reader"), self.log_in("north-device")
        commands = ["fulmar/north/instance/phone-1/command", "fulmar/north/instance/phone-2/command"]
        self.call("PUT", "/api/v1/north/instance/phone-1", {"kind": "phone"}, reader)
        self.call("PUT", "/api/v1/north/instance/phone-2", {"kind": "phone"}, device)
        self.assertEqual(self.client("north-reader", reader, commands).codes, [1, 0x87])
        self.assertEqual(self.client("north-device", device, commands).codes, [0x87, 1])
        office = self.client("north-office", self.log_in("north-office"), commands + ["fulmar/north/#"])
        self.assertEqual(office.codes, [1, 1, 1])
        # What a receiver publishes is its owner's.
        self.call("POST", "/api/v1/north/meter", {"id": "m2", "address": "SEN-33225545-68-07"}, self.log_in("north-admin"))
        frame = {"hex": FRAME.replace("44552233", "45552233"), "at": "2026-11-21T10:00:00Z", "rssi_dbm": -70, "mode": "T1"}
        van = self.client("north-device", device)
        codes = []
        van.on_publish = lambda c, _, mid, code, properties: codes.append(code.value)
        van.publish("fulmar/north/receiver/phone-1/frame", json.dumps(frame), qos=1)
        eventually("a refusal", lambda: codes)
        self.assertEqual(codes, [0x87], "another user's device")
        van.publish("fulmar/north/receiver/phone-2/frame", json.dumps(frame), qos=1)
        path = "/api/v1/north/reading?meter=m2"
        eventually("the reading", lambda: self.call("GET", path, token=reader)["items"])
        (stored,) = self.call("GET", path, token=reader)["items"]
        self.assertEqual((stored["reader"], stored["device"]), ("north-device", "phone-2"))

    def test_a_reader_does_not_become_the_receiver_of_another_user(self):
        admin, reader, device = [self.log_in(f"north-{role}") for role in ("admin", "reader", "device")]
        self.call("POST", "/api/v1/north/meter", {"id": "m3", "address": "SEN-33225546-68-07"}, admin)
        # Under its name, as another user of the server, and as what looks like it.
        for name in ("north-device", "south-admin", "North-Device"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.call("PUT", f"/api/v1/north/instance/{name}", {"kind": "van"}, reader)
            self.assertEqual(refused.exception.code, 403, name)
        commands = "fulmar/north/instance/north-device/command"
        attacker = self.client("north-reader", reader, [commands])
        self.assertEqual(attacker.codes, [0x87], "another user's commands")
        topic = "fulmar/north/receiver/north-device/frame"
        frame = {"hex": FRAME.replace("44552233", "46552233"), "at": "2026-11-21T10:00:00Z", "rssi_dbm": -70, "mode": "T1"}
        codes = {}
        for name, client in (("reader", attacker), ("device", self.client("north-device", device, [commands]))):
            client.on_publish = lambda c, _, mid, code, properties, name=name: codes.update({name: code.value})
            client.publish(topic, json.dumps(frame), qos=1)
            eventually(f"the {name}'s PUBACK", lambda: name in codes)
        self.assertEqual(codes["reader"], 0x87)
        self.assertLess(codes["device"], 0x80, "the receiver is not silenced")
        path = "/api/v1/north/reading?meter=m3"
        eventually("the reading", lambda: self.call("GET", path, token=admin)["items"])
        (stored,) = self.call("GET", path, token=admin)["items"]
        self.assertEqual((stored["reader"], stored["device"]), ("north-device", "north-device"))
        # The office registers the receiver, which has its name and its commands all the same.
        shown = self.call("PUT", "/api/v1/north/instance/north-device", {"kind": "receiver"}, admin)
        self.assertEqual(shown["user"], "north-device")
        self.call("POST", "/api/v1/north/instance/north-device/command/reboot", {}, admin)
        self.assertEqual(len(self.call("GET", "/api/v1/north/instance/north-device/command", token=device)["items"]), 1)
