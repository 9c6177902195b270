"""What bridges lose. Devices publish numbered readings at QoS 1 through a bridge to a central broker (mosquitto), each
reading some milliseconds after the one before is acknowledged. Meanwhile, at random moments, the bridge is killed with
-9, the link to the central broker is cut, silent first or not, and the central broker is restarted in order. At the
end, the readings that the devices saw acknowledged are counted at a subscriber of the central broker. If some are
missing and no more arrive, the bridge is restarted in order once: what then arrives is late, the rest is lost.

A kill of a process is no power cut: what the operating system has of a file survives it. So this shows what a bridge
loses without ever syncing a file; power_cuts.py is about the rest.

`make bridge-kill-test` runs it; FULMAR_BRIDGES (fulmar,mosquitto,nanomq,nothing), FULMAR_BRIDGE_RUNS,
FULMAR_BRIDGE_READINGS and FULMAR_BRIDGE_SEED change what it does."""

import collections
import dataclasses
import os
import random
import statistics
import sys
import threading
import time

import paho.mqtt.client as paho

import ports
from bridge_peers import TOPICS, Mosquitto, available
from broker import PATIENCE_S, eventually
from paho_client import lasting_client
from tcp_relay import TcpRelay

DEVICES = 5
# A device's pause between two readings.
PAUSE_S = 0.02
# After its last reading, a device goes on with these, which do not count: they show that the bridge is connected, and
# NanoMQ's sends what it has queued only when it has sent something new.
BEAT = "beat"
BEAT_S = 1
# A bridge that delivers nothing for so long is stuck. mosquitto's takes up to half a minute to try again, whatever
# restart_timeout says.
STUCK_S = 120


@dataclasses.dataclass
class Plan:
    """How many readings a run has, and how many troubles of each kind."""

    readings: int
    kills: int
    cuts: int
    restarts: int
    # Over a bridge that is connected, a subscriber that has received no reading for so long receives none any more.
    quiet_s: float = 10

    @classmethod
    def of(cls, readings: int):
        return cls(readings, kills=max(3, readings // 150), cuts=max(2, readings // 300), restarts=max(1, readings // 700))


@dataclasses.dataclass
class Outcome:
    acknowledged: int
    lost: int
    # Arrived only after the bridge was restarted in order, at the end.
    late: int
    duplicates: int
    # Of these, without an identifier by which a receiver recognises them.
    unrecognised: int
    disordered: int


class Subscriber:
    """At the central broker, with a lasting session."""

    def __init__(self, port: int):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        # The user property `id` of each reading's first copy.
        self.ids = {}
        self.disordered = self.unrecognised = 0
        self.newest = {}
        # The last reading and the last beat.
        self.received_at = self.beat_at = time.monotonic()
        ready = threading.Event()
        self.client = lasting_client("subscriber", port)
        self.client.on_message = self.on_message
        self.client.on_subscribe = lambda *rest: ready.set()
        self.client.on_connect = lambda *rest: self.client.subscribe(TOPICS, 1)
        self.client.loop_start()
        if not ready.wait(PATIENCE_S):
            raise AssertionError("the subscriber's subscription was not confirmed")

    def on_message(self, client, data, message):
        device, number = message.payload.decode().split()
        if device == BEAT:
            self.beat_at = time.monotonic()
            return
        reading = device, int(number)
        identifier = dict(getattr(message.properties, "UserProperty", [])).get("id")
        with self.lock:
            self.received_at = time.monotonic()
            if reading not in self.counts:
                self.ids[reading] = identifier
                self.disordered += reading[1] < self.newest.get(device, 0)
                self.newest[device] = max(reading[1], self.newest.get(device, 0))
            elif message.dup:
                # The central broker's own repetition after a restart is not the bridge's.
                return
            else:
                self.unrecognised += identifier is None or identifier != self.ids[reading]
            self.counts[reading] += 1

    def missing(self, readings) -> int:
        with self.lock:
            return sum(reading not in self.counts for reading in readings)

    def is_quiet(self, seconds: float) -> bool:
        return time.monotonic() > self.received_at + seconds

    def gets_beats_alone(self, seconds: float) -> bool:
        return self.beat_at > self.received_at + seconds

    def gets_nothing(self, seconds: float) -> bool:
        return time.monotonic() > max(self.received_at, self.beat_at) + seconds


class Device:
    """Publishes readings one after the other, in a thread of its own."""

    def __init__(self, name: str, port: int, count: int):
        self.name, self.count = name, count
        self.acknowledged = []
        self.answered = threading.Semaphore(0)
        self.ready, self.closed = threading.Event(), threading.Event()
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, clean_session=False)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_publish = lambda *rest: self.answered.release()
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        self.thread = threading.Thread(target=self.publish, daemon=True)
        self.thread.start()

    def publish(self):
        for number in range(1, self.count + 1):
            # Without a connection, Paho keeps it for the next one.
            self.client.publish(f"sensor/{self.name}", f"{self.name} {number}", 1)
            if not self.answered.acquire(timeout=2 * PATIENCE_S):
                break
            self.acknowledged.append((self.name, number))
            time.sleep(PAUSE_S)
        self.ready.set()
        while not self.closed.wait(BEAT_S):
            self.client.publish(f"sensor/{self.name}", f"{BEAT} 0", 1)

    def close(self):
        self.closed.set()
        self.client.disconnect()
        self.client.loop_stop()


class Scene:
    """A bridge, the link, the central broker, and what is wrong with them now."""

    def __init__(self, peer, chance: random.Random):
        self.chance = chance
        self.central = Mosquitto()
        [port] = ports.take(1)
        self.link = TcpRelay(port, self.central.port)
        self.bridge = peer(port)
        self.timers = []

    def later(self, what):
        """Does it after a moment, while devices go on."""
        timer = threading.Timer(self.chance.uniform(0.2, 2), what)
        self.timers.append(timer)
        timer.start()

    def kill(self):
        self.bridge.kill()
        time.sleep(self.chance.uniform(0, 0.5))
        self.bridge.start()

    def cut(self):
        self.settle()
        if self.chance.random() < 0.5:
            self.link.silence()
            time.sleep(self.chance.uniform(0, 0.5))
        self.link.cut()
        self.later(self.link.up)

    def restart(self):
        self.settle()
        # A relay that accepts connections and closes them would be another trouble.
        self.link.refuse()
        self.central.end()
        self.later(self.start_central)

    def start_central(self):
        self.central.start()
        self.link.up()

    def settle(self):
        """Until the link and the central broker are up."""
        for timer in self.timers:
            timer.join()
        self.timers.clear()

    def close(self):
        self.settle()
        self.bridge.close()
        self.link.close()
        self.central.close()


def awaited(subscriber: Subscriber, acknowledged: list, plan: Plan) -> int:
    """How many readings are missing when no more arrive."""
    # Duplicates arrive last.
    complete = lambda: not subscriber.missing(acknowledged) and subscriber.is_quiet(2)
    no_more = lambda: subscriber.gets_beats_alone(plan.quiet_s) or subscriber.gets_nothing(STUCK_S)
    eventually("the last reading", lambda: complete() or no_more(), 20 * PATIENCE_S)
    return subscriber.missing(acknowledged)


def play(peer, plan: Plan, seed: int) -> Outcome:
    """One run."""
    chance = random.Random(seed)
    scene = Scene(peer, chance)
    subscriber = Subscriber(scene.central.port)
    devices = [Device(f"probe{number}", scene.bridge.port, plan.readings // DEVICES) for number in range(DEVICES)]
    try:
        events = [scene.kill] * plan.kills + [scene.cut] * plan.cuts + [scene.restart] * plan.restarts
        chance.shuffle(events)
        published = lambda: sum(len(device.acknowledged) for device in devices)
        total = DEVICES * (plan.readings // DEVICES)
        # Not in the last tenth, which is published whole.
        moments = sorted(chance.sample(range(total * 9 // 10), len(events)))
        for moment, event in zip(moments, events):
            eventually("readings to be acknowledged", lambda: published() >= moment)
            event()
        scene.settle()
        for device in devices:
            device.ready.wait(20 * PATIENCE_S)
        acknowledged = [reading for device in devices for reading in device.acknowledged]
        if len(acknowledged) != total:
            raise AssertionError(f"{peer.TITLE} acknowledged {len(acknowledged)} of {total} readings (seed {seed})")
        late = 0
        if missing := awaited(subscriber, acknowledged, plan):
            scene.bridge.end()
            scene.bridge.start()
            subscriber.received_at = time.monotonic()
            late = missing - awaited(subscriber, acknowledged, plan)
        counts = subscriber.counts
        return Outcome(
            acknowledged=total,
            lost=subscriber.missing(acknowledged),
            late=late,
            duplicates=sum(counts.values()) - len(counts),
            unrecognised=subscriber.unrecognised,
            disordered=subscriber.disordered,
        )
    finally:
        for device in devices:
            device.close()
        subscriber.client.disconnect()
        subscriber.client.loop_stop()
        scene.close()


def spread(values: list[int]) -> str:
    return f"{min(values):,} / {statistics.median_low(values):,} / {max(values):,}"


def table(outcomes: dict) -> str:
    """As the documentation has it: minimum, median and maximum of the runs."""
    titles = ["in front of the broker", "lost", "late", "duplicates", "of these, without `id`", "out of order"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for peer, runs in outcomes.items():
        names = ("lost", "late", "duplicates", "unrecognised", "disordered")
        columns = [spread([getattr(run, name) for run in runs]) for name in names]
        lines.append(f"| {' | '.join([peer.TITLE, *columns])} |")
    return "\n".join(lines)


def main() -> int:
    runs = int(os.environ.get("FULMAR_BRIDGE_RUNS", "5"))
    plan = Plan.of(int(os.environ.get("FULMAR_BRIDGE_READINGS", "3000")))
    seed = int(os.environ.get("FULMAR_BRIDGE_SEED", random.randrange(1 << 32)))
    print(f"{runs} runs of {plan}, seed {seed}", flush=True)
    outcomes = collections.defaultdict(list)
    for run in range(runs):
        for peer in available():
            began = time.monotonic()
            outcome = play(peer, plan, seed + run)
            outcomes[peer].append(outcome)
            print(f"{peer.TITLE}: {outcome} in {time.monotonic() - began:.0f} s", flush=True)
    print(table(outcomes))
    failed = [peer.TITLE for peer in outcomes if peer.__name__ in ("Fulmar", "Nothing")
              and any(run.lost for run in outcomes[peer])]
    if failed:
        print(f"LOST READINGS: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
