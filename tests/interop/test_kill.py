"""Power cuts: the broker is killed with -9 while lasting sessions publish and receive. What was
acknowledged arrives, and at QoS 2 arrives once.

FULMAR_KILL_MESSAGES and FULMAR_KILL_TIMES make it long (`make kill-test`)."""

import collections
import os
import random
import threading
import unittest

from broker import Broker, eventually
from paho_client import lasting_client

MESSAGES = int(os.environ.get("FULMAR_KILL_MESSAGES", "3000"))
TIMES = int(os.environ.get("FULMAR_KILL_TIMES", "3"))


class Kill(unittest.TestCase):
    def play(self, qos):
        # The queue must hold what the subscriber has not yet taken; dropping is another test's matter.
        broker = Broker(f"[limits]\nmax_queued_messages = {MESSAGES + 1}\n")
        self.addCleanup(broker.close)
        got, acknowledged, subscribed = collections.Counter(), [], threading.Event()
        lock = threading.Lock()

        def on_message(client, data, message):
            with lock:
                got[int(message.payload)] += 1

        sub = lasting_client("sub", broker.ports["mqtt"])
        sub.on_message = on_message
        sub.on_subscribe = lambda *rest: subscribed.set()
        sub.on_connect = lambda *rest: None if subscribed.is_set() else sub.subscribe("kill", qos)
        pub = lasting_client("pub", broker.ports["mqtt"])
        pub.on_publish = lambda client, data, mid, *rest: acknowledged.append(mid)
        for client in (sub, pub):
            client.loop_start()
            self.addCleanup(client.loop_stop)
        self.assertTrue(subscribed.wait(30))
        seed = random.randrange(1 << 32)
        chance = random.Random(seed)
        at = sorted(chance.sample(range(MESSAGES), TIMES))
        for number in range(MESSAGES):
            pub.publish("kill", str(number), qos)
            if at and number == at[0]:
                at.pop(0)
                wanted = chance.randrange(number + 1)
                eventually("progress", lambda: len(acknowledged) > wanted)
                broker.kill()
                broker.start()
        eventually("all acknowledgements", lambda: len(acknowledged) == MESSAGES)
        eventually("all messages", lambda: len(got) == MESSAGES)
        if qos == 2:
            twice = {number: count for number, count in got.items() if count > 1}
            self.assertEqual(twice, {}, f"delivered more than once (seed {seed})")
        self.assertEqual(broker.stop(), 0)

    def test_qos_1_loses_nothing(self):
        self.play(1)

    def test_qos_2_loses_nothing_and_doubles_nothing(self):
        self.play(2)


if __name__ == "__main__":
    unittest.main()
