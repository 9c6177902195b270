"""The short form of bridge_kill.py: Fulmar's gateway loses nothing; what mosquitto's bridge loses is printed."""

import random
import unittest

from bridge_kill import Plan, play
from bridge_peers import Fulmar, Mosquitto

PLAN = Plan(readings=300, kills=3, cuts=1, restarts=1, quiet_s=5)


class BridgeKill(unittest.TestCase):
    def test_a_gateway_loses_nothing(self):
        seed = random.randrange(1 << 32)
        ours, theirs = play(Fulmar, PLAN, seed), play(Mosquitto, PLAN, seed)
        print(f"seed {seed}: {Fulmar.TITLE}: {ours}; {Mosquitto.TITLE}: {theirs}", flush=True)
        self.assertEqual((ours.lost, ours.unrecognised, ours.disordered), (0, 0, 0), f"seed {seed}")


if __name__ == "__main__":
    unittest.main()
