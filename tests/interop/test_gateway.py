"""A gateway and the broker upstream, both ours: what devices publish at the gateway arrives upstream once and
in order, at a subscriber and in the platform's storage, while the gateway is killed with -9 at random moments,
with the link up or down; commands come down.

FULMAR_GATEWAY_READINGS and FULMAR_GATEWAY_KILLS make it long (`make gateway-kill-test`)."""

import collections
import datetime
import getpass
import json
import os
import pathlib
import random
import socket
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.request

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import ports
from api import Api
from broker import Broker, eventually

READINGS = int(os.environ.get("FULMAR_GATEWAY_READINGS", "3000"))
KILLS = int(os.environ.get("FULMAR_GATEWAY_KILLS", "3"))
DEVICES = 5
# What a gateway may have resident with 10,000 readings queued, where `make gateway-memory-test` says so for a release
# build; and without its code, which takes more in a program that is not optimised, depending on the page cache.
RESIDENT_MIB = os.environ.get("FULMAR_GATEWAY_RESIDENT_MIB")
ANONYMOUS_MIB = 30


def settings(upstream: Broker, more="", prefix="site/") -> str:
    return f"""
[upstream]
url = "quic://localhost:{upstream.ports["quic"]}"
fallback_port = {upstream.ports["mqtts"]}
ca_file = "{upstream.ca}"
name = "gw"
{more}
[[upstream.up]]
filter = "alarm/#"
to_prefix = "{prefix}"
priority = "urgent"
[[upstream.up]]
filter = "sensor/#"
to_prefix = "{prefix}"
[[upstream.down]]
filter = "{prefix}command/#"
from_prefix = "{prefix}"
"""


def client_of(case, name: str, port: int):
    """A client whose session lasts."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    client.reconnect_delay_set(1, 1)
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(200)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    case.addCleanup(client.loop_stop)
    return client


class Subscriber:
    """Remembers what it is sent, by topic, with the identifiers that the gateway gave."""

    def __init__(self, case, port: int, *filters: str):
        self.got = collections.defaultdict(list)
        self.ids = collections.Counter()
        self.count = 0
        self.topics = []
        ready = threading.Event()
        self.client = client = client_of(case, "subscriber", port)
        client.on_message = self.on_message
        client.on_subscribe = lambda *rest: ready.set()
        client.on_connect = lambda *rest: client.subscribe([(name, 1) for name in filters])
        client.loop_start()
        case.assertTrue(ready.wait(30))

    def on_message(self, client, data, message):
        properties = dict(getattr(message.properties, "UserProperty", []))
        self.ids[properties.get("id")] += 1
        self.topics.append(message.topic)
        self.got[message.topic].append((message.payload.decode(), properties))
        self.count += 1


class Publisher:
    """A device: publishes at QoS 1 and remembers what was acknowledged."""

    def __init__(self, case, port: int, name="device"):
        self.acknowledged = 0
        self.client = client_of(case, name, port)
        self.client.on_publish = self.on_publish
        self.client.loop_start()

    def on_publish(self, *rest):
        self.acknowledged += 1


def figure(broker: Broker, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['http']}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"fulmar_gateway_{name} "):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no figure {name}")


def connected(gateway: Broker) -> int:
    """Connections upstream. On a busy machine, TLS wins some of the races with QUIC."""
    return sum(figure(gateway, f'connected{{transport="{transport}"}}') for transport in ("quic", "mqtts"))


class DiskBroker(Broker):
    """A broker whose data folder is a disk of its own, mounted where only it sees it; its log stays outside."""

    def __init__(self, settings, script):
        self.script = script
        super().__init__(settings)

    @property
    def prefix(self):
        return ["unshare", "-Urm", "sh", "-c", self.script, "sh", str(self.data)]

    @prefix.setter
    def prefix(self, prefix):
        pass


class Gateway(unittest.TestCase):
    def setUp(self):
        self.upstream = Broker("[limits]\nmax_queued_messages = 1000000\n")
        self.addCleanup(self.upstream.close)

    def gateway(self, more="") -> Broker:
        gateway = Broker(settings(self.upstream, more))
        self.addCleanup(gateway.close)
        return gateway

    def test_both_ways(self):
        gateway = self.gateway()
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/sensor/#", "site/alarm/#")
        below = Subscriber(self, gateway.ports["mqtt"], "command/#", "site/#")
        device = Publisher(self, gateway.ports["mqtt"])
        device.client.publish("sensor/probe/co2", "640", 1)
        device.client.publish("elsewhere/probe", "1", 1)
        eventually("the reading", lambda: above.count == 1)
        [(payload, properties)] = above.got["site/sensor/probe/co2"]
        self.assertEqual(payload, "640")
        self.assertRegex(properties["id"], r"^gw-[0-9a-f]+-1$")
        self.assertRegex(properties["at"], r"^20\d\d-\d\d-\d\dT[\d:]{8}\.\d{3}Z$")
        self.assertEqual(properties["via"], "gw")
        self.assertNotIn("fulmar-origin", properties)
        operator = Publisher(self, self.upstream.ports["mqtt"], "operator")
        operator.client.publish("site/command/probe", "open", 1)
        eventually("the command", lambda: below.count == 1)
        self.assertEqual([payload for payload, _ in below.got["command/probe"]], ["open"])
        eventually("an empty outbox", lambda: figure(gateway, "queued") == 0)
        self.assertEqual(figure(gateway, "sent_total"), 1)
        self.assertEqual(connected(gateway), 1)
        self.assertEqual(gateway.stop(), 0)

    def test_commands_survive_power_cuts(self):
        rounds, commands = 4, 500
        gateway = self.gateway()
        operator = Publisher(self, self.upstream.ports["mqtt"], "operator")
        device = Subscriber(self, gateway.ports["mqtt"], "command/#")

        def heard():
            operator.client.publish("site/command/probe", "hello", 1)
            return device.count > 0

        eventually("the gateway's subscription", heard)
        # What is for a device that sleeps waits in the gateway.
        device.client.disconnect()
        for part in range(rounds):
            for number in range(commands):
                operator.client.publish("site/command/probe", str(part * commands + number), 1)
            eventually("some of them", lambda: figure(gateway, "received_total") > 0)
            gateway.kill()
            gateway.start()
        awake = Subscriber(self, gateway.ports["mqtt"], "command/#")
        got = awake.got["command/probe"]
        wanted = {str(number) for number in range(rounds * commands)}
        eventually("all commands", lambda: wanted <= {payload for payload, _ in got})
        self.assertEqual(gateway.stop(), 0)

    def test_devices_that_speak_http(self):
        gateway = self.gateway()
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/sensor/#")

        def post(topic: str, **headers) -> int:
            url = f"http://127.0.0.1:{gateway.ports['http']}/publish/{topic}"
            request = urllib.request.Request(url, b"21.5", headers)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        self.assertEqual(post("sensor/probe/temperature"), 204)
        eventually("the reading", lambda: above.count == 1)
        [(payload, properties)] = above.got["site/sensor/probe/temperature"]
        self.assertEqual(payload, "21.5")
        self.assertTrue(properties["id"].startswith("gw-"))
        self.assertEqual(post("elsewhere"), 404)
        self.assertEqual(post("sensor/%23"), 400)
        self.assertEqual(post("sensor/probe?qos=2"), 400)
        self.assertEqual(post("sensor/probe", Origin="https://evil.example"), 403)
        self.assertEqual(post("sensor/probe", Authorization="Basic ?"), 400)

    def test_power_cuts(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        chance = random.Random(seed)
        gateway = self.gateway()
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/sensor/#")
        device = Publisher(self, gateway.ports["mqtt"])
        cuts = sorted(chance.sample(range(READINGS), KILLS))
        link_is_up = True
        for number in range(READINGS):
            device.client.publish(f"sensor/probe{number % DEVICES}/co2", json.dumps({"n": number}), 1)
            if cuts and number == cuts[0]:
                cuts.pop(0)
                wanted = chance.randrange(number + 1)
                eventually("progress", lambda: device.acknowledged > wanted)
                gateway.kill()
                # While offline, or while draining.
                if link_is_up and chance.random() < 0.5:
                    self.upstream.kill()
                    link_is_up = False
                elif not link_is_up:
                    self.upstream.start()
                    link_is_up = True
                gateway.start()
        eventually("all acknowledgements", lambda: device.acknowledged == READINGS)
        if not link_is_up:
            self.upstream.start()
        # What is sent again after a cut has its identifier again.
        eventually("all readings", lambda: len(above.ids) >= READINGS)
        eventually("an empty outbox", lambda: figure(gateway, "queued") == 0)
        by_id = {}
        for topic, readings in above.got.items():
            order = collections.defaultdict(list)
            for payload, properties in readings:
                number = json.loads(payload)["n"]
                if properties["id"] in by_id:
                    self.assertEqual(by_id[properties["id"]], number, "an identifier is one reading's")
                else:
                    by_id[properties["id"]] = number
                    life, place = properties["id"].rsplit("-", 1)
                    order[life].append(int(place))
            # In the order of entry: Paho itself sends what it repeats after what is new.
            for life, places in order.items():
                self.assertEqual(places, sorted(places), f"order of {topic} in {life} (seed {seed})")
        once = collections.Counter(by_id.values())
        twice = {number: count for number, count in once.items() if count > 1}
        self.assertEqual(twice, {}, f"readings with several identifiers (seed {seed})")
        self.assertEqual(sorted(once), list(range(READINGS)), f"seed {seed}")

    def test_what_is_full_holds_devices_back_and_loses_nothing(self):
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/sensor/#")
        self.upstream.kill()
        gateway = self.gateway("[upstream.outbox]\nmax_bytes = 200000\npolicy = \"refuse\"\n[limits]\nmax_packet_bytes = 100000")
        device = Publisher(self, gateway.ports["mqtt"])
        # More than outbox and broker's queue take together.
        messages = 8000
        for number in range(messages):
            device.client.publish("sensor/probe/co2", json.dumps({"n": number}), 1)
        eventually("the bound", lambda: figure(gateway, "outbox_failing") == 1)
        log = (gateway.data / "log").read_text()
        self.assertIn("raise [upstream.outbox] max_bytes", log)
        self.assertLess(device.acknowledged, messages)
        self.upstream.start()
        eventually("all acknowledgements", lambda: device.acknowledged == messages)
        eventually("all readings", lambda: above.count >= messages)
        numbers = [json.loads(payload)["n"] for payload, _ in above.got["site/sensor/probe/co2"]]
        self.assertEqual(numbers, list(range(messages)))

    def test_a_full_disk(self):
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/sensor/#")
        self.upstream.kill()
        flag = tempfile.TemporaryDirectory()
        self.addCleanup(flag.cleanup)
        room = pathlib.Path(flag.name) / "make-room"
        # A small disk of its own, with something on it that can be taken away.
        script = f"""
            set -e
            data=$1; shift
            mkdir $data.disk && mount -t tmpfs -o size=120m none $data.disk
            cp -a $data/. $data.disk && mount --move $data.disk $data
            rmdir $data.disk
            head -c 100M /dev/zero >$data/ballast
            (until [ -e {room} ]; do sleep 0.1; done; rm $data/ballast) &
            exec "$@"
        """
        tried = subprocess.run(["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
        if tried.returncode != 0:
            self.skipTest("this machine lets nobody have a disk of one's own (unshare -Urm)")
        gateway = DiskBroker(settings(self.upstream), script)
        self.addCleanup(gateway.close)
        device = Publisher(self, gateway.ports["mqtt"])
        messages = 4000
        for number in range(messages):
            device.client.publish("sensor/probe/co2", json.dumps({"n": number, "x": "x" * 2000}), 1)
        log = gateway.data / "log"
        eventually("a full disk", lambda: "make room on the disk" in log.read_text())
        self.assertLess(device.acknowledged, messages)
        self.upstream.start()
        room.touch()
        eventually("all acknowledgements", lambda: device.acknowledged == messages)
        eventually("all readings", lambda: above.count >= messages)
        numbers = [json.loads(payload)["n"] for payload, _ in above.got["site/sensor/probe/co2"]]
        self.assertEqual(numbers, list(range(messages)))
        self.assertEqual(gateway.stop(), 0)

    def test_ten_thousand_queued_readings_take_little_memory(self):
        # With all the listeners there are unless the configuration says otherwise.
        gateway = self.gateway()
        eventually("the uplink", lambda: connected(gateway) == 1)
        self.upstream.kill()
        devices = [Publisher(self, gateway.ports["mqtt"], f"device{number}") for number in range(DEVICES)]
        for number in range(10_000):
            reading = json.dumps({"value": 640.5, "n": number})
            devices[number % DEVICES].client.publish(f"sensor/probe{number % DEVICES}/co2", reading, 1)
        eventually("all acknowledgements", lambda: sum(device.acknowledged for device in devices) == 10_000)
        eventually("all in the outbox", lambda: figure(gateway, "queued") == 10_000)
        status = pathlib.Path(f"/proc/{gateway.process.pid}/status").read_text()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if " kB" in line}
        print({name: kib[name] for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")}, flush=True)
        if RESIDENT_MIB:
            self.assertLess(kib["VmRSS"], int(RESIDENT_MIB) * 1024)
        self.assertLess(kib["RssAnon"], ANONYMOUS_MIB * 1024)
        self.assertFalse((gateway.data / "platform.db").exists(), "a gateway has no platform unless told")

    def test_urgent_messages_overtake_a_backlog(self):
        self.upstream.stop()
        gateway = self.gateway()
        device = Publisher(self, gateway.ports["mqtt"])
        for number in range(2000):
            device.client.publish("sensor/probe/co2", f"{number} {'x' * 500}", 1)
        device.client.publish("alarm/smoke", "now", 1)
        eventually("all in the outbox", lambda: figure(gateway, "queued") == 2001)
        gateway.kill()
        self.upstream.start()
        above = Subscriber(self, self.upstream.ports["mqtt"], "site/#")
        gateway.start()
        eventually("the backlog", lambda: above.count == 2001)
        self.assertLess(above.topics.index("site/alarm/smoke"), 20)


class Storage(Api):
    """Upstream is the platform with the sensors of a home: what counts is what its API has at the end."""

    SETTINGS = "[limits]\nmax_queued_messages = 1000000\n"
    # The span that one answer of the API holds all readings of a device of.
    PAGE = 2000 * DEVICES

    def setUp(self):
        token = tempfile.NamedTemporaryFile(mode="w")
        self.addCleanup(token.close)
        token.write(self.log_in("north-device"))
        token.flush()
        # Little may be in flight, so that there are moments at which it drains.
        more = f'user = "north-device"\ntoken_file = "{token.name}"\n[upstream.outbox]\nmax_in_flight_bytes = 2000\n'
        self.gateway = Broker(settings(self.broker, more, "fulmar/north/"))
        self.addCleanup(self.gateway.close)
        self.token = self.log_in("north-admin")
        self.call("POST", "/api/v1/north/home", {"id": "mill", "name": "Mill"}, self.token)
        for device in range(DEVICES):
            self.call("PUT", f"/api/v1/north/sensor/probe{device}", {"home": "mill", "room": "Attic"}, self.token)
        self.began = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) - datetime.timedelta(days=2)

    def at(self, number: int) -> str:
        at = self.began + datetime.timedelta(seconds=number)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def series(self, device: int, first: int, end: int, step) -> list:
        query = f"device=probe{device}&quantity=co2&from={self.at(first)}&to={self.at(end)}&step={step}"
        return self.call("GET", f"/api/v1/north/series?{query}", token=self.token)["points"]

    def stored(self) -> int:
        """How many readings are in the sums that the platform keeps."""
        points = [point for device in range(DEVICES) for point in self.series(device, 0, READINGS, 3600)]
        return sum(point["count"] for point in points)

    def test_power_cuts(self):
        seed = random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        chance = random.Random(seed)
        device = Publisher(self, self.gateway.ports["mqtt"])
        numbers = iter(range(READINGS))

        def publish(count: int):
            for _, number in zip(range(count), numbers):
                reading = json.dumps({"value": number, "at": self.at(number)})
                device.client.publish(f"sensor/probe{number % DEVICES}/co2", reading, 1)

        # Offline and draining by turns: before every second cut the link fails, so that there is something to drain.
        cuts = collections.Counter()
        for cut in range(KILLS):
            kept = device.acknowledged
            if cut % 2 == 0:
                self.broker.kill()
                kind = "offline"
                share = READINGS // KILLS
                publish(share)
                wanted = kept + chance.randrange(share // 2, share)
                eventually("progress", lambda: device.acknowledged >= wanted)
            else:
                self.broker.start()
                publish(READINGS // KILLS // 2)
                kind = "draining"
                eventually("what drains", lambda: figure(self.gateway, "sent_total") > 0)
            waiting = figure(self.gateway, "queued")
            self.gateway.kill()
            cuts[kind, waiting > 0] += 1
            self.gateway.start()
        publish(READINGS)
        if self.broker.process.poll() is not None:
            self.broker.start()
        eventually("all acknowledgements", lambda: device.acknowledged == READINGS)
        eventually("an empty outbox", lambda: figure(self.gateway, "queued") == 0)
        # What the gateway let go of is the broker's, which has to have it when its power fails too.
        self.broker.kill()
        self.broker.start()
        self.token = self.log_in("north-admin")
        eventually("all readings", lambda: self.stored() >= READINGS)
        for device in range(DEVICES):
            points = []
            for first in range(0, READINGS, self.PAGE):
                points += self.series(device, first, min(first + self.PAGE, READINGS), "raw")
            found = [(point["at"], point["value"]) for point in points]
            sent = [(self.at(number), number) for number in range(device, READINGS, DEVICES)]
            self.assertEqual(found, sent, f"each once, in order (seed {seed})")
        self.assertEqual(self.stored(), READINGS)
        print(f"killed at: {dict(cuts)}", flush=True)
        self.assertGreater(cuts["offline", True], 0)
        self.assertGreater(cuts["draining", True], 0)


class Mosquitto(unittest.TestCase):
    """A bridge from ours to mosquitto, with the roles that test_bridge has the other way round."""

    def play(self, version: str, topic_up: str, topic_down: str):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        [port] = ports.take(1)
        config = pathlib.Path(folder.name) / "mosquitto.conf"
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", f"user {getpass.getuser()}"]
        config.write_text("\n".join([*lines, "persistence true", f"persistence_location {folder.name}/"]) + "\n")

        def start():
            process = subprocess.Popen(
                ["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            return process

        def listens():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        mosquitto = start()
        eventually("mosquitto", listens)
        gateway = Broker(
            f"""
[upstream]
url = "mqtt://localhost:{port}"
version = "{version}"
name = "bridge"
[[upstream.up]]
filter = "{topic_up}/#"
[[upstream.down]]
filter = "{topic_down}/#"
"""
        )
        self.addCleanup(gateway.close)
        eventually("the bridge", lambda: figure(gateway, 'connected{transport="mqtt"}') == 1)
        theirs = Subscriber(self, port, "#")
        ours = Subscriber(self, gateway.ports["mqtt"], "#")
        device = Publisher(self, gateway.ports["mqtt"])
        device.client.publish(f"{topic_up}/meter", "upward", 1)
        eventually("what goes up", lambda: theirs.count == 1)
        operator = Publisher(self, port, "operator")
        eventually("the subscription", lambda: operator.client.is_connected())
        operator.client.publish(f"{topic_down}/valve", "downward", 1)
        eventually("what comes down", lambda: ours.count == 2)
        # While theirs is down, a backlog; then everything once.
        mosquitto.terminate()
        mosquitto.wait(30)
        for number in range(100):
            device.client.publish(f"{topic_up}/meter", f"meanwhile {number}", 1)
        eventually("the backlog", lambda: figure(gateway, "queued") == 100)
        start()
        eventually("the end", lambda: theirs.count >= 102)
        self.assertEqual(
            [payload for payload, _ in theirs.got[f"{topic_up}/meter"]],
            ["upward", *[f"meanwhile {number}" for number in range(100)]],
        )
        self.assertEqual([payload for payload, _ in theirs.got[f"{topic_down}/valve"]], ["downward"])
        # Twice, if mosquitto ended before it had heard that the first is stored.
        self.assertEqual({payload for payload, _ in ours.got[f"{topic_down}/valve"]}, {"downward"})
        self.assertEqual(len(ours.got[f"{topic_up}/meter"]), 101, "nothing comes back")

    def test_mqtt_5_both_ways_on_one_topic(self):
        self.play("5", "both", "both")

    def test_mqtt_3_1_1(self):
        self.play("3.1.1", "up", "down")


if __name__ == "__main__":
    unittest.main()
