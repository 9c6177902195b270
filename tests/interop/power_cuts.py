"""Power cuts at random moments under load: the broker is killed with -9, and what it had not synced is gone
(soak/power.c). Clients are Eclipse Paho's in Python and, over quic-go, in Go, mosquitto's, and ours with flows of
their own. What was acknowledged arrives at every subscriber, and at QoS 2 once.

FULMAR_SOAK_KILLS says how often (20; `make soak`: 1,000). With FULMAR_SOAK_LIES=N one sync in N does nothing: then the
test has to fail, which shows that it can."""

import collections
import faulthandler
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from broker import PATIENCE_S, Broker, binary, eventually
from paho_client import lasting_client

KILLS = int(os.environ.get("FULMAR_SOAK_KILLS", "20"))
LIES = os.environ.get("FULMAR_SOAK_LIES", "0")
# Messages of one publisher that may be under way.
WINDOW = 64
# No longer without a kill, if the load does not go on: a client may take long to notice.
LONGEST_S = 5
SETTINGS = "[limits]\nmax_queued_messages = 1000000\nmax_queued_bytes = 1000000000\n"
# Not the broker's.
OURS = {"log", "fulmar.toml"}


class PowerCutBroker(Broker):
    """A broker that loses at a kill what it has not synced."""

    def __init__(self, settings):
        self.work = tempfile.TemporaryDirectory()
        self.disk = pathlib.Path(self.work.name) / "disk"
        self.disk.mkdir()
        self.shim = pathlib.Path(self.work.name) / "power.so"
        source = pathlib.Path(__file__).parent / "soak" / "power.c"
        compiler = ["cc", "-O2", "-shared", "-fPIC", "-o", str(self.shim), str(source), "-ldl", "-lpthread"]
        subprocess.run(compiler, check=True)
        super().__init__(settings)

    def start(self):
        self.prefix = ("env", f"LD_PRELOAD={self.shim}", f"POWER_DATA={self.data}", f"POWER_DISK={self.disk}",
                       f"POWER_LIES={LIES}")
        super().start()

    def cut_power(self):
        self.kill()
        if not any(self.disk.iterdir()):
            raise AssertionError("the broker has synced nothing: is the shim there?")
        for path in self.data.iterdir():
            if path.name not in OURS:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.disk, self.data, dirs_exist_ok=True)

    def close(self):
        super().close()
        self.work.cleanup()


class Ledger:
    """What was sent and acknowledged, and what each subscriber got. A payload is QOS.PUBLISHER.NUMBER."""

    def __init__(self):
        self.lock = threading.Lock()
        self.sent = collections.Counter()
        self.settled = collections.Counter()
        self.acknowledged = set()
        self.got = {}

    def next(self, qos, who):
        with self.lock:
            self.sent[who] += 1
            return f"{qos}.{who}.{self.sent[who]}"

    def acknowledge(self, payload):
        with self.lock:
            self.acknowledged.add(payload)
            self.settled[payload.split(".")[1]] += 1

    def arrive(self, subscriber, payload):
        with self.lock:
            self.got[subscriber][payload] += 1

    def has_room(self, who):
        with self.lock:
            return self.sent[who] - self.settled[who] < WINDOW

    def missing(self):
        """Of each subscriber, how many messages of each publisher, with the first and the last of what it sent."""
        with self.lock:
            missing = {}
            for name, got in self.got.items():
                numbers = collections.defaultdict(list)
                for payload in self.acknowledged - got.keys():
                    _, who, number = payload.split(".")
                    numbers[who].append(int(number))
                for who, its in numbers.items():
                    missing[f"{who} to {name}"] = f"{len(its)}: {min(its)} to {max(its)} of {self.sent[who]}"
            return missing

    def twice(self):
        with self.lock:
            return {(name, payload): times for name, got in self.got.items() for payload, times in got.items()
                    if times > 1 and payload.startswith("2.") and name != "mosquitto"}


class PahoPublisher:
    """Its client's callbacks must not wait for who publishes: they hold locks that publishing takes."""

    def __init__(self, qos, port, ledger):
        self.qos, self.ledger = qos, ledger
        self.under_way, self.done = {}, collections.deque()
        self.client = lasting_client(f"soak-paho-{qos}", port)
        self.client.on_publish = lambda client, data, mid, *rest: self.done.append(mid)
        # One entry for each CONNACK.
        self.connected = []
        self.client.on_connect = lambda *rest: self.connected.append(True)
        self.client.loop_start()

    def send(self, payload):
        self.under_way[self.client.publish(f"soak/{self.qos}", payload, self.qos).mid] = payload

    def look(self):
        """What was acknowledged is. For the thread that sends, or when it has ended."""
        while self.done:
            self.ledger.acknowledge(self.under_way.pop(self.done.popleft()))


class Soak(unittest.TestCase):
    def setUp(self):
        self.ledger = Ledger()
        # What ended a thread, such as one of Paho's, which nothing would bring back.
        self.broken = []
        hook, threading.excepthook = threading.excepthook, self.note
        self.addCleanup(setattr, threading, "excepthook", hook)
        self.over = threading.Event()
        self.feeders, self.paho = [], []
        self.broker = PowerCutBroker(SETTINGS)
        self.addCleanup(self.broker.close)

    def note(self, what):
        self.broken.append(f"{what.thread.name}: {what.exc_value!r}")
        threading.__excepthook__(what)

    def program(self, command):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   text=True, bufsize=1)

        def end():
            process.kill()
            process.wait(PATIENCE_S)
            process.stdout.close()

        self.addCleanup(end)
        return process

    def feed(self, who, qos, send, look=lambda: None):
        def run():
            while not self.over.is_set():
                look()
                if self.ledger.has_room(who):
                    send(self.ledger.next(qos, who))
                else:
                    time.sleep(0.002)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.feeders.append(thread)
        # Before the broker is closed, also when the test fails.
        self.addCleanup(self.over.set)

    def read(self, process, each):
        def run():
            for line in process.stdout:
                each(line.strip())

        threading.Thread(target=run, daemon=True).start()

    def subscribers(self):
        """Starts them, and waits until each is subscribed."""
        own, ports, ledger = self.ledger.got, self.broker.ports, self.ledger
        for name in ("paho", "mosquitto", "go", "own"):
            own[name] = collections.Counter()
        python = lasting_client("soak-paho", ports["mqtt"])
        python.on_message = lambda client, data, message: ledger.arrive("paho", message.payload.decode())
        subscribed = threading.Event()
        python.on_subscribe = lambda *rest: subscribed.set()
        python.on_connect = lambda *rest: None if subscribed.is_set() else python.subscribe("soak/#", 2)
        python.loop_start()
        self.python = python
        self.addCleanup(python.loop_stop)
        commands = {
            # At QoS 1: libmosquitto 2.0 keeps a QoS 2 PUBLISH that is sent again after a crash a second time, and
            # delivers that when PUBREL is sent again as well.
            "mosquitto": ["mosquitto_sub", "-V", "311", "-p", str(ports["mqtt"]), "-i", "soak-mosquitto", "-c", "-q", "1",
                          "-k", "5", "-t", "soak/#", "-F", "%q %p"],
            "go": [os.environ["FULMAR_SOAK_GO"], "sub", "soak-go", f"127.0.0.1:{ports['quic']}", self.broker.ca,
                   "soak/1", "soak/2"],
            "own": [binary(), "sub", f"quic://localhost:{ports['quic']}", "--cafile", self.broker.ca, "-i", "soak-own",
                    "-c", "-q", "2", "-k", "2", "-t", "soak/1", "-t", "soak/2", "--streams", "subscription",
                    "--persistent-flows", "-F", "%q %p"],
        }
        for name, command in commands.items():
            def each(line, name=name):
                if line.count(".") == 2:
                    ledger.arrive(name, line.split()[1])
            self.read(self.program(command), each)
        self.assertTrue(subscribed.wait(PATIENCE_S))
        # Whoever gets the first message is subscribed.
        probe = lasting_client("soak-probe", ports["mqtt"])
        probe.loop_start()
        numbers = iter(range(1, 1_000_000))

        def all_subscribed():
            probe.publish("soak/1", f"1.probe.{next(numbers)}", 1)
            probe.publish("soak/2", f"1.probe.{next(numbers)}", 1)
            return all(any(int(payload.split(".")[2]) % 2 == parity for payload in got)
                       for got in own.values() for parity in (0, 1))

        eventually("all subscriptions", all_subscribed)
        probe.disconnect()
        probe.loop_stop()

    def publishers(self):
        ports, ledger = self.broker.ports, self.ledger
        quic = f"127.0.0.1:{ports['quic']}"
        for qos in (1, 2):
            self.paho.append(PahoPublisher(qos, ports["mqtt"], ledger))
            self.addCleanup(self.paho[-1].client.loop_stop)
            self.feed(f"paho{qos}", qos, self.paho[-1].send, self.paho[-1].look)
        go = self.program([os.environ["FULMAR_SOAK_GO"], "pub", "soak-go-pub", quic, self.broker.ca, "soak/2", "2"])

        def go_says(line):
            word, _, payload = line.partition(" ")
            if word == "acknowledged":
                ledger.acknowledge(payload)
            elif word == "unknown":
                with ledger.lock:
                    ledger.settled["go"] += 1

        self.read(go, go_says)
        self.feed("go", 2, lambda payload: go.stdin.write(payload + "\n"))
        own = {}
        for qos in (1, 2):
            command = [binary(), "pub", f"quic://localhost:{ports['quic']}", "--cafile", self.broker.ca,
                       "-i", f"soak-own-pub-{qos}", "-c", "-k", "2", "-t", f"soak/{qos}", "-q", str(qos), "-l",
                       "--streams", "topic", "--persistent-flows"]
            process = own[f"own{qos}"] = self.program(command)
            self.feed(f"own{qos}", qos, lambda payload, process=process: process.stdin.write(payload + "\n"))
        # A publisher of ours that never was connected gives up: whoever typed it wants to know.

        def all_connected():
            self.see_own()
            return all(self.ledger.settled[who] for who in ("paho1", "paho2", "go", *own))

        eventually("all publishers", all_connected)
        return own

    def see_own(self):
        """Our own publisher does not print what is acknowledged: what has arrived anywhere makes room for more."""
        with self.ledger.lock:
            for who in ("own1", "own2"):
                arrived = max(sum(payload.split(".")[1] == who for payload in got) for got in self.ledger.got.values())
                self.ledger.settled[who] = max(arrived, self.ledger.settled[who])

    def wait_for_arrivals(self):
        """Until nothing is missing, or nothing has arrived for too long: Paho may be far behind, and comparing all
        messages takes the time that it needs, so that is done only after a second without arrivals."""
        before, end = -1, time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            time.sleep(1)
            arrived = sum(sum(got.values()) for got in self.ledger.got.values())
            if arrived != before:
                before, end = arrived, time.monotonic() + PATIENCE_S
            elif not self.ledger.missing():
                return

    def keep_evidence(self):
        """What a loss has to be understood from: whether Paho is connected and hears from the broker, whether a new
        message gets through, the broker's data and log."""
        python, seen = self.python, sum(self.ledger.got["paho"].values())
        print(f"Paho: connected {python.is_connected()}, {len(python._in_messages)} incoming under way, "
              f"{len(python._out_packet)} packets to send", file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        kept = pathlib.Path(tempfile.mkdtemp(prefix="fulmar-soak-lost-"))
        shutil.copytree(self.broker.data, kept, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
        probe = lasting_client("soak-probe", self.broker.ports["mqtt"])
        probe.loop_start()
        probe.publish("soak/1", "1.probe.0", 1)
        end = time.monotonic() + 30
        while self.ledger.got["paho"]["1.probe.0"] == 0 and time.monotonic() < end:
            time.sleep(0.05)
        print(f"Paho had {seen} messages, then {sum(self.ledger.got['paho'].values())}; a new one "
              f"{'arrived' if self.ledger.got['paho']['1.probe.0'] else 'did not arrive'} within 30 s. The broker's "
              f"data and log are in {kept}", file=sys.stderr, flush=True)
        probe.loop_stop()

    def test_power_cuts_lose_nothing_and_double_nothing(self):
        seed = random.randrange(1 << 32)
        chance, ledger, began = random.Random(seed), self.ledger, time.monotonic()
        print(f"seed {seed}, {KILLS} kills", flush=True)
        self.subscribers()
        own = self.publishers()
        for kill in range(KILLS):
            wanted = len(ledger.acknowledged) + chance.randrange(300)
            until = time.monotonic() + LONGEST_S
            while len(ledger.acknowledged) < wanted and time.monotonic() < until:
                self.see_own()
                time.sleep(0.01)
            # Each kill ends connections on which something is under way.
            eventually("Paho's connections", lambda: self.broken or
                       all(len(publisher.connected) > kill for publisher in self.paho))
            self.assertEqual(self.broken, [], f"a thread ended (seed {seed})")
            time.sleep(chance.random() / 20)
            self.broker.cut_power()
            self.broker.start()
            self.assertEqual(ledger.twice(), {}, f"delivered more than once by kill {kill} (seed {seed})")
            if kill % 50 == 49:
                print(f"{kill + 1} kills, {len(ledger.acknowledged)} acknowledged, "
                      f"{time.monotonic() - began:.0f} s", flush=True)
        self.over.set()
        for feeder in self.feeders:
            feeder.join(PATIENCE_S)
        for who, process in own.items():
            process.stdin.close()
            self.assertEqual(process.wait(PATIENCE_S), 0, f"{who} could not publish everything (seed {seed})")
            with ledger.lock:
                ledger.acknowledged |= {f"{who[-1]}.{who}.{number}" for number in range(1, ledger.sent[who] + 1)}
        def all_acknowledged():
            for publisher in self.paho:
                publisher.look()
            return all(ledger.settled[who] == ledger.sent[who] for who in ("paho1", "paho2", "go"))

        eventually("all acknowledgements", all_acknowledged)
        self.wait_for_arrivals()
        if ledger.missing():
            self.keep_evidence()
        self.assertEqual(ledger.missing(), {}, f"acknowledged and lost (seed {seed})")
        self.assertEqual(self.broken, [], f"a thread ended (seed {seed})")
        self.assertEqual(ledger.twice(), {}, f"delivered more than once (seed {seed})")
        print(f"{KILLS} kills in {time.monotonic() - began:.0f} s: {len(ledger.acknowledged)} acknowledged, "
              f"each at {len(ledger.got)} subscribers", flush=True)
        self.assertEqual(self.broker.stop(), 0)


if __name__ == "__main__":
    unittest.main()
