"""The platform on a cluster: meters, work lists, readings, photos and alerts are what another node has after kill -9 of
the one that served while readers, phones and sensors sent; everything that was answered 2xx, or acknowledged to a
sensor, is there, and logins and tokens stay good.

FULMAR_CLUSTER_CHANGES makes it long."""

import contextlib
import datetime
import json
import os
import sqlite3
import ssl
import threading
import time
import unittest
import urllib.error
import urllib.request
import uuid

import paho.mqtt.client as paho
import ports
import postgres
from broker import eventually
from cluster_nodes import begin, wait_serving
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from test_cluster import Base, setUpModule  # noqa: F401
from test_cluster_state import fulmar

KILLS = int(os.environ.get("FULMAR_CLUSTER_CHANGES", "3"))
PASSWORD = "correct horse"
# Larger than a record of the log.
PHOTO_BYTES = 1_500_000
PLATFORM = """
[platform]
enabled = true
max_photo_bytes_per_day = 5_000_000_000
"""
SECONDS_PER_REQUEST = 20


def moment(ms):
    return datetime.datetime.fromtimestamp(round(ms) / 1000, datetime.timezone.utc).isoformat(timespec="milliseconds")


def go_back(data):
    """Puts a folder's accounts to where builds before version 3 of `identities.db` had them: in the platform's database."""
    with (
        contextlib.closing(sqlite3.connect(data / "identities.db")) as store,
        contextlib.closing(sqlite3.connect(data / "platform.db")) as platform,
    ):
        for (body,) in store.execute("SELECT body FROM account").fetchall():
            account = json.loads(body)
            name, admin = account["name"], account.get("server_admin", False)
            row = (name, account["display_name"], account.get("password", ""), admin)
            platform.execute("INSERT INTO account VALUES (?, ?, ?, ?, 1)", row)
            for own in account.get("memberships", []):
                platform.execute("INSERT INTO member VALUES (?, ?, ?)", (own["twin"], name, own["role"]))
            for token in account.get("tokens", []):
                row = (token["id"], name, token["digest"])
                platform.execute("INSERT INTO credential VALUES (?, ?, ?, 1, NULL)", row)
        platform.commit()
        store.executescript("DROP TABLE account; PRAGMA user_version = 2")


class Platform(Base):
    def platform_node(self, servers, name, extra=PLATFORM):
        node = self.node(servers, name, development=True, extra=extra)
        [node.https] = ports.take(1)
        text = node.config.read_text().replace("https = []", f'https = ["127.0.0.1:{node.https}"]')
        node.config.write_text(text)
        return node

    def cluster_with_users(self, extra=PLATFORM, prepare=lambda node: None):
        """Two nodes; the first one was a broker alone with a platform, of which they are made."""
        servers = self.servers(1)
        nodes = [self.platform_node(servers, f"node-{index}", extra) for index in range(2)]
        config = ["--config", nodes[0].config]
        fulmar(nodes[0], "twin", "add", "hamburg", *config)
        fulmar(nodes[0], "twin", "add", "rural", "--kind", "homes", *config)
        fulmar(nodes[0], "user", "add", "ann", "--admin", *config, text=PASSWORD + "\n")
        fulmar(nodes[0], "user", "add", "rita", "--twin", "hamburg", "--role", "reader", *config, text=PASSWORD + "\n")
        token = fulmar(nodes[0], "user", "token", "gw-1", "--twin", "rural", "--role", "device", *config)
        prepare(nodes[0])
        first, [second] = begin(nodes)
        return servers, first, second, token.stdout.strip()

    def call(self, node, method, path, body=None, token=None, kind="application/json", raw=False):
        headers = {"content-type": kind}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        url = f"https://127.0.0.1:{node.https}/api/v1{path}"
        # Each node has a certificate of its own.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(url, method=method, headers=headers, data=data)
        with urllib.request.urlopen(request, context=context, timeout=SECONDS_PER_REQUEST) as answer:
            text = answer.read()
            return text if raw else json.loads(text or b"null")

    def log_in(self, node, user, password=PASSWORD):
        return self.call(node, "POST", "/session", {"user": user, "password": password})["token"]

    def all(self, node, path, token):
        """All items of a list with pages."""
        items, cursor = [], ""
        while cursor is not None:
            page = self.call(node, "GET", f"{path}?limit=500{cursor}", token=token)
            items += page["items"]
            cursor = f"&cursor={page['next']}" if page.get("next") else None
        return items

    def sensor(self, node, token, measured):
        """Publishes measurements, and returns those that were acknowledged."""
        made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="gw-1", protocol=paho.MQTTv5)
        made.username_pw_set("gw-1", token)
        acknowledged, sent = [], {}
        made.on_publish = lambda client, data, mid, code, properties: acknowledged.append((mid, code.value))
        made.connect("127.0.0.1", node.mqtt)
        made.loop_start()
        eventually("a CONNACK", made.is_connected)
        for at, value, name in measured:
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("at", moment(at)), ("id", name)]
            sent[made.publish("fulmar/rural/sensor/attic/radon", str(value), 1, properties=properties).mid] = at
        eventually("acknowledgements", lambda: len(acknowledged) == len(sent))
        made.disconnect()
        made.loop_stop()
        self.assertEqual({code for _, code in acknowledged}, {0})
        return [sent[mid] for mid, _ in acknowledged]

    def points(self, node, token):
        query = "/rural/series?device=attic&quantity=radon&step=raw"
        points = self.call(node, "GET", query, token=token)["points"]
        return {moment(datetime.datetime.fromisoformat(point["at"]).timestamp() * 1000) for point in points}

    def test_everything_is_at_the_node_that_takes_over_and_in_snapshots(self):
        servers, first, second, gateway = self.cluster_with_users()
        admin, reader = self.log_in(first, "ann"), self.log_in(first, "rita")
        new = {"name": "otto", "password": "another horse", "role": "office"}
        self.call(first, "POST", "/hamburg/user", new, admin)
        # From the command line, the node that serves does it.
        config = ["--config", first.config]
        fulmar(first, "user", "add", "paul", "--twin", "hamburg", "--role", "viewer", *config, text="third horse\n")
        fulmar(first, "user", "passwd", "paul", *config, text="fourth horse\n")
        fulmar(first, "user", "role", "paul", "--twin", "rural", "--role", "viewer", *config)
        fulmar(first, "twin", "add", "bremen", *config)
        self.assertIn("bremen\tbremen", fulmar(first, "twin", "list", *config).stdout)
        other_gateway = fulmar(first, "user", "token", "gw-2", "--twin", "rural", "--role", "device", *config).stdout.strip()
        refused = fulmar(second, "user", "list", "--config", second.config, check=False)
        self.assertIn(f"{first.name} at 127.0.0.1:{first.mqtt} serves", refused.stderr)
        refused = fulmar(first, "user", "add", "paul", "--admin", *config, text=PASSWORD + "\n", check=False)
        self.assertIn("a user with this name exists", refused.stderr)
        for meter in ("m1", "m2", "m3"):
            self.call(first, "POST", "/hamburg/meter", {"id": meter, "street": f"{meter} Street", "medium": "water"}, admin)
        key = {"key": "000102030405060708090A0B0C0D0E0F"}
        self.call(first, "PUT", "/hamburg/meter/m3/key", key, admin)
        work_list = self.call(first, "POST", "/hamburg/work_list", {"name": "Monday", "meters": ["m1", "m2"]}, admin)["id"]
        photo, picture = str(uuid.uuid4()), b"\xff\xd8\xff" + os.urandom(PHOTO_BYTES)
        self.call(first, "PUT", f"/hamburg/photo/{photo}", picture, reader, "image/jpeg")
        reading = {"id": str(uuid.uuid4()), "meter": "m1", "at": moment(time.time() * 1000), "value": 12.5,
                   "method": "photo", "photo": photo, "work_list": work_list}
        self.call(first, "POST", "/hamburg/reading", {"items": [reading]}, reader)
        self.call(first, "PATCH", f"/hamburg/reading/{reading['id']}", {"value": 13.5, "reason": "the photo"}, admin)
        exchange = {"id": str(uuid.uuid4()), "at": moment(time.time() * 1000), "final": 20, "first": 0, "new_serial": "B-2"}
        self.call(first, "POST", "/hamburg/meter/m1/exchange", exchange, admin)
        self.call(first, "POST", "/rural/home", {"id": "mill", "name": "Mill"}, admin)
        self.call(first, "PUT", "/rural/sensor/attic", {"home": "mill", "room": "Attic"}, admin)
        now = int(time.time() * 1000)
        # More than an hour of too much: the rule is on the mean of an hour.
        measured = [(now - 240_000 * n, 900, f"gw-{n}") for n in range(20, 0, -1)]
        self.assertEqual(len(self.sensor(first, gateway, measured)), len(measured))
        alerts = []

        def raised():
            alerts[:] = self.call(first, "GET", "/rural/alert", token=admin)["items"]
            return bool(alerts)

        eventually("an alert", raised)
        note = {"note": "windows opened"}
        self.call(first, "POST", f"/rural/alert/{alerts[0]['id']}/acknowledge", note, admin)
        # A session that was given back stays so.
        gone = self.log_in(first, "rita")
        self.call(first, "DELETE", "/session", token=gone)
        paths = ["/hamburg/meter", "/hamburg/work_list", "/hamburg/reading", "/hamburg/reading_change", "/hamburg/meter/m1/exchange",
                 "/hamburg/user",
                 "/rural/alert", "/rural/home", "/rural/sensor", "/rural/alert_rule", "/twin"]

        def everything(node):
            shown = {path: self.call(node, "GET", path, token=admin) for path in paths}
            shown["photo"] = self.call(node, "GET", f"/hamburg/photo/{photo}", token=admin, raw=True) == picture
            shown["points"] = sorted(self.points(node, admin))
            return shown

        before = everything(first)
        self.assertEqual(len(before["points"]), len(measured))
        self.assertTrue(before["photo"])

        def check(node):
            # With the tokens that another node gave.
            self.assertEqual(everything(node), before)
            self.assertEqual(self.call(node, "GET", "/session", token=reader)["user"]["name"], "rita")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.call(node, "GET", "/session", token=gone)
            self.assertEqual(refused.exception.code, 401)
            self.log_in(node, "otto", "another horse")
            self.log_in(node, "paul", "fourth horse")
            self.assertEqual(self.call(node, "GET", "/session", token=other_gateway)["user"]["name"], "gw-2")
            listed = fulmar(node, "user", "list", "--config", node.config).stdout
            self.assertIn("paul\tpaul\tviewer@hamburg viewer@rural", listed)
            # The gateway's token, and the same message again: it is stored once.
            self.sensor(node, gateway, measured[:1])

        first.kill()
        wait_serving([second])
        check(second)

        # A third node begins with a snapshot, which has them.
        self.assertIn("stored a snapshot", second.command("snapshot").stdout)
        third = self.platform_node(servers, "node-2")
        third.start()
        eventually("the third stands by", lambda: third.ready()[0] == 503)
        self.call(second, "POST", "/hamburg/meter", {"id": "m4", "medium": "water"}, admin)
        before = everything(second)
        second.kill()
        wait_serving([third])
        check(third)

        # Deleted at one node, it is not there again at one that was away meanwhile.
        self.call(third, "DELETE", "/hamburg/user/otto", token=admin)
        first.start()
        eventually("the first stands by", lambda: first.ready()[0] == 503)
        self.assertEqual(third.stop(), 0)
        wait_serving([first])
        names = [user["name"] for user in self.call(first, "GET", "/hamburg/user", token=admin)["items"]]
        self.assertNotIn("otto", names)
        self.assertIn("rita", names)

        # And back to one broker.
        before = everything(first)
        self.assertEqual(first.stop(), 0)
        first.command("leave")
        first.config.write_text(first.config.read_text().split("[cluster]")[0] + PLATFORM)
        first.start()
        wait_serving([first])
        self.assertEqual(everything(first), before)
        self.assertEqual(self.call(first, "GET", "/session", token=reader)["user"]["name"], "rita")
        fulmar(first, "user", "add", "eve", "--admin", "--config", first.config, text=PASSWORD + "\n")

    def test_users_of_an_earlier_build_become_the_clusters(self):
        _, first, second, gateway = self.cluster_with_users(prepare=lambda node: go_back(node.data / "data"))
        admin = self.log_in(first, "ann")
        fulmar(first, "user", "remove", "rita", "--config", first.config)
        first.kill()
        wait_serving([second])
        self.assertEqual(self.call(second, "GET", "/session", token=admin)["user"]["server_admin"], True)
        self.assertEqual(len(self.sensor(second, gateway, [(int(time.time() * 1000), 20, "gw-once")])), 1)
        # Nobody comes back from the copy of the platform's tables.
        self.assertNotIn("rita", fulmar(second, "user", "list", "--config", second.config).stdout)
        with contextlib.closing(sqlite3.connect(second.data / "data" / "platform.db")) as platform:
            self.assertEqual(platform.execute("SELECT count(*) FROM account").fetchone(), (0,))

    def test_a_damaged_log_is_restored_with_the_platform(self):
        servers, first, second, _ = self.cluster_with_users()
        admin = self.log_in(first, "ann")
        self.call(first, "POST", "/hamburg/meter", {"id": "m1", "medium": "water"}, admin)
        servers.append(b"not a record")
        eventually("the node that stands by ends", lambda: second.process.poll() is not None)
        first.kill()
        first.command("restore", "--discard")
        first.start()
        wait_serving([first])
        [meter] = self.call(first, "GET", "/hamburg/meter", token=admin)["items"]
        self.assertEqual(meter["id"], "m1")
        self.log_in(first, "rita")

    def test_kill_9_while_readers_and_sensors_send_loses_nothing_that_was_answered(self):
        _, first, second, gateway = self.cluster_with_users()
        nodes = [first, second]
        admin, reader = self.log_in(first, "ann"), self.log_in(first, "rita")
        for number in range(10):
            self.call(first, "POST", "/hamburg/meter", {"id": f"m{number}", "medium": "water"}, admin)
        readings, photos, measurements, sent = set(), {}, set(), 0
        node = first
        for _ in range(KILLS):
            ended = threading.Event()
            answered = [0]

            def read(node=node, ended=ended, answered=answered):
                while not ended.is_set():
                    items = [{"id": str(uuid.uuid4()), "meter": f"m{number}", "at": moment(time.time() * 1000),
                              "value": time.time(), "method": "manual"} for number in range(10)]
                    try:
                        result = self.call(node, "POST", "/hamburg/reading", {"items": items}, reader)
                    except OSError:
                        return
                    readings.update(item["id"] for item in result["results"] if item["status"] == "stored")
                    answered[0] += 1

            def photograph(node=node, ended=ended):
                while not ended.is_set():
                    photo, picture = str(uuid.uuid4()), b"\xff\xd8\xff" + os.urandom(600_000)
                    try:
                        self.call(node, "PUT", f"/hamburg/photo/{photo}", picture, reader, "image/jpeg")
                    except OSError:
                        return
                    photos[photo] = picture

            def measure(node=node, ended=ended):
                client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="gw-1", protocol=paho.MQTTv5)
                client.username_pw_set("gw-1", gateway)
                waiting, taken = {}, []

                def acknowledged(client, data, mid, code, properties):
                    # It may come before publish() has returned.
                    if code.value == 0:
                        taken.append(mid)

                def count():
                    while taken:
                        measurements.add(waiting[taken.pop()])

                client.on_publish = acknowledged
                client.connect("127.0.0.1", node.mqtt)
                client.loop_start()
                while not ended.is_set():
                    at = moment(time.time() * 1000)
                    properties = Properties(PacketTypes.PUBLISH)
                    properties.UserProperty = [("at", at), ("id", str(uuid.uuid4()))]
                    made = client.publish("fulmar/rural/sensor/attic/radon", "20", 1, properties=properties)
                    waiting[made.mid] = at
                    count()
                    time.sleep(0.01)
                client.loop_stop()
                count()

            threads = [threading.Thread(target=run) for run in (read, read, photograph, measure)]
            for thread in threads:
                thread.start()
            enough, pictures, points = answered[0] + 10, len(photos) + 2, len(measurements) + 20
            eventually("answers", lambda enough=enough, pictures=pictures, points=points:
                       answered[0] >= enough and len(photos) >= pictures and len(measurements) >= points)
            node.kill()
            ended.set()
            for thread in threads:
                thread.join()
            sent += answered[0]
            other, _ = wait_serving(nodes, but=node)
            node.start()
            eventually("it stands by", lambda stands=node: stands.ready()[0] == 503)
            there = {item["id"] for item in self.all(other, "/hamburg/reading", reader)}
            self.assertEqual(readings - there, set(), "readings answered, and gone")
            for photo, picture in photos.items():
                found = self.call(other, "GET", f"/hamburg/photo/{photo}", token=admin, raw=True)
                self.assertEqual(found, picture, "a photo answered, and gone")
            eventually("what the broker acknowledged", lambda at=other: measurements <= self.points(at, admin))
            node = other
        print(f"{len(readings)} readings in {sent} answers, {len(photos)} photos, {len(measurements)} measurements: all there",
              flush=True)

    def test_with_postgresql_a_node_takes_the_database_from_one_that_is_paused(self):
        database = postgres.Server()
        self.addCleanup(database.close)
        database.sql("CREATE DATABASE platform")
        extra = PLATFORM + f"""
database = "postgres://{postgres.USER}@127.0.0.1:{database.port}/platform"
database_password_file = "{database.path / 'password'}"
"""
        _, first, second, gateway = self.cluster_with_users(extra)
        admin, reader = self.log_in(first, "ann"), self.log_in(first, "rita")
        self.call(first, "POST", "/hamburg/meter", {"id": "m1", "medium": "water"}, admin)
        answered = set()

        def read(node):
            item = {"id": str(uuid.uuid4()), "meter": "m1", "at": moment(time.time() * 1000), "value": time.time(),
                    "method": "manual"}
            result = self.call(node, "POST", "/hamburg/reading", {"items": [item]}, reader)
            self.assertEqual(result["results"][0]["status"], "stored")
            answered.add(item["id"])

        def stored(node):
            return {item["id"] for item in self.all(node, "/hamburg/reading", reader)}

        for _ in range(5):
            read(first)
        first.pause()
        wait_serving([second])
        self.assertEqual(stored(second), answered)
        read(second)
        self.sensor(second, gateway, [(time.time() * 1000 - 1000, 20, "gw-1")])
        # The first one has the same users and may be asked until it knows; it answers nothing of its own.
        first.go_on()
        until = time.monotonic() + 20
        while first.ready()[0] != 503 and time.monotonic() < until:
            with self.assertRaises(OSError):
                read(first)
        self.assertEqual(first.ready()[0], 503)
        read(second)
        self.assertFalse((first.data / "data" / "platform.db").exists())
        second.kill()
        wait_serving([first])
        self.assertEqual(stored(first) & answered, answered)
        read(first)
        self.assertEqual(self.call(first, "GET", "/session", token=gateway)["user"]["name"], "gw-1")


if __name__ == "__main__":
    unittest.main()
