"""Homes as a gateway, an office and a pager see them: paho, Python's HTTP client and server, none of it ours."""

import base64
import datetime
import hashlib
import hmac
import http.server
import json
import threading
import time
import unittest

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import test_platform
from broker import eventually

SECRET = "a pager's secret"


def moment(seconds_ago):
    at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=seconds_ago)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Pager(http.server.ThreadingHTTPServer):
    """Refuses the first attempt, takes the rest."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), PagerHandler)
        self.refused, self.taken = 0, []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class PagerHandler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        by_body = "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        identifier, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = hmac.new(SECRET.encode(), f"{identifier}.{at}.".encode() + body, hashlib.sha256).digest()
        signature = "v1," + base64.b64encode(signed).decode()
        is_genuine = hmac.compare_digest(by_body, self.headers["x-fulmar-signature"]) and hmac.compare_digest(
            signature, self.headers["webhook-signature"]) and abs(time.time() - int(at)) < 300
        if not self.server.refused:
            self.server.refused += 1
            self.send_response(503)
        elif is_genuine:
            self.server.taken.append(json.loads(body))
            self.send_response(204)
        else:
            self.send_response(403)
        self.end_headers()

    def log_message(self, *_):
        pass


class Monitoring(test_platform.Platform):
    # The pager is on this machine.
    SETTINGS = '[platform]\nwebhook_allow = ["127.0.0.1"]\n'
    # Only the helpers are wanted.
    test_a_van_publishes_frames_and_only_its_twin_hears_of_them = None

    def publish(self, client, topic, payload, at, identifier):
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("at", at), ("id", identifier)]
        sent = client.publish(f"fulmar/north/sensor/{topic}", payload, qos=1, properties=properties)
        sent.wait_for_publish(20)

    def test_a_gateways_readings_are_stored_once_and_radon_is_told(self):
        admin, device, viewer, stranger = [
            self.log_in(user) for user in ("north-admin", "north-device", "north-viewer", "south-admin")
        ]
        self.call("POST", "/api/v1/north/home", {"id": "mill", "name": "Mill"}, admin)
        self.call("PUT", "/api/v1/north/sensor/attic", {"home": "mill", "room": "Attic"}, admin)
        pager = Pager()
        self.addCleanup(pager.shutdown)
        hook = {"url": f"http://127.0.0.1:{pager.server_port}/alerts", "secret": SECRET, "least_severity": "warning"}
        self.call("POST", "/api/v1/north/webhook", hook, admin)
        office = self.client("north-viewer", viewer, ["fulmar/north/value/+/+", "fulmar/north/alert/+"])
        self.assertEqual(office.codes, [1, 1])
        other = self.client("south-admin", stranger, ["fulmar/north/value/+/+", "fulmar/north/alert/+"])
        self.assertEqual(other.codes, [0x87, 0x87])
        gateway = self.client("north-device", device)

        # An hour and more: the mean of an hour says nothing before its hour was measured.
        start = [moment(4800 - 240 * n) for n in range(20)]

        def stored():
            # Again and again, always the same: the platform's own client comes when there is a first user.
            for n in range(20):
                value = "120" if n < 10 else "900"
                self.publish(gateway, "attic/radon", value, start[n], f"gw-{n}")
            self.publish(gateway, "cellar", json.dumps({"temperature": 12.5, "humidity": 60}), start[0], "gw-w")
            self.publish(gateway, "cellar/co2", "much", start[0], "gw-x")
            return any(topic.endswith("cellar/humidity") for topic, _ in office.heard)

        eventually("the readings", stored)
        path = "/api/v1/north/series?device=attic&quantity=radon&step=raw"
        eventually("all of them", lambda: len(self.call("GET", path, token=viewer)["points"]) == 20)
        points = self.call("GET", path, token=viewer)["points"]
        self.assertEqual([point["at"] for point in points], start, "each once, in order")

        active = self.call("GET", "/api/v1/north/alert?state=active", token=viewer)["items"]
        self.assertEqual([(alert["rule"], alert["device"]) for alert in active], [("radon", "attic")])
        self.assertIn(active[0]["raised_at"], start)
        home = self.call("GET", "/api/v1/north/home/mill", token=viewer)
        self.assertEqual((home["worst"], home["values"][0]["value"]), ("warning", 900))
        eventually("the pager", lambda: pager.taken)
        self.assertEqual((pager.refused, pager.taken[0]["event"]), (1, "raised"))
        self.assertEqual(pager.taken[0]["alert"]["id"], active[0]["id"])
        self.assertIn(f"fulmar/north/alert/{active[0]['id']}", [topic for topic, _ in office.heard])
        self.assertEqual(other.heard, [])


if __name__ == "__main__":
    unittest.main()
