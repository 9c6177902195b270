"""What benches/cluster_capacity.py computes, by hand for inputs with round numbers."""

import pathlib
import subprocess
import sys
import unittest

BENCHES = pathlib.Path(__file__).resolve().parents[2] / "benches"
sys.path.insert(0, str(BENCHES))

from cluster_capacity import Inputs, control, first_end, messages_next, messages_today, report, sessions, take_over_s  # noqa: E402

ROUND = {
    "machine": {"cores": [4, 8], "memory_gib": [1, 2], "disk_mb_per_s": [10, 20], "network_mb_per_s": [1000, 1000],
                "usable": [0.5, 0.5]},
    "append": {"ms": [1, 2], "record_bytes": [100_000, 200_000]},
    "busy": {"serving_us": [1, 3], "standing_by_us": [0, 1], "server_us": [1, 1], "log_bytes": [100, 200]},
    "sparse": {"serving_us": [100, 200], "standing_by_us": [0, 20], "server_us": [100, 200], "log_bytes": [100, 200]},
    "sessions": {"kib": [1, 4], "connects_per_s": [10_000, 20_000]},
    "take_over": {"lease_s": [3, 4], "election_s": [4, 9], "turn_s": [1, 1], "restore_s_per_million": [1, 2]},
    "control": {"renewals_per_node_s": [1, 1], "change_us": [100, 1000], "changes_per_s": [400, 5000]},
    "next": {"cells": [2, 10], "link_us": [2, 4], "link_batch": [1, 10], "splice_us": [0, 3], "route_bytes": [100, 200],
             "routes": [1000, 100_000], "idle_stream_cores": [0, 0.1]},
}


def inputs(**changed):
    """ROUND, with other ranges, such as busy__log_bytes=[1, 1]."""
    values = {section: dict(ranges) for section, ranges in ROUND.items()}
    for name, ends in changed.items():
        section, key = name.split("__")
        values[section][key] = ends
    return Inputs("\n".join(f"[{section}.{key}]\nrange = {ends}\nsource = 'round'"
                            for section, ranges in values.items() for key, ends in ranges.items()))


class Capacity(unittest.TestCase):
    def test_messages_end_with_the_first_resource(self):
        # 10 MB/s of 200 B each; the log alone would take 500 appends of 100,000 B.
        self.assertEqual(first_end(messages_today(inputs(), "busy", False)), (50_000, "disk of each NATS server"))
        # 4 cores half used, 400 µs per message, of which the server beside the node needs half.
        limit, name = first_end(messages_today(inputs(), "sparse", False))
        self.assertEqual((limit, name), (5_000, "processors of the machine that serves"))
        faster = inputs(machine__disk_mb_per_s=[1000, 1000])
        self.assertEqual(first_end(messages_today(faster, "busy", False))[1], "appends of one log, one at a time")

    def test_cells_share_the_processors_and_not_the_disks(self):
        low, name = first_end(messages_next(inputs(), "busy", False))
        # Half of the messages are in a second cell's log as well.
        self.assertEqual((round(low), name), (round(10e6 / 300), "disk of each NATS server"))
        # Each message costs all three servers; where that is more than the node, cells do not help.
        cheap = inputs(sparse__server_us=[10, 10])
        one, three = (limits(cheap, "sparse", True) for limits in (messages_today, messages_next))
        self.assertGreater(three["processors of all machines"], one["processors of the machine that serves"])
        self.assertLess(three["disk of each NATS server"], one["disk of each NATS server"])

    def test_sessions_fit_what_is_left_when_a_machine_has_died(self):
        half_a_gib = 2**29
        self.assertEqual(sessions(inputs(), False, 1), {"memory": half_a_gib / 4096})
        self.assertEqual(sessions(inputs(), False, 3), {"memory": 2 * half_a_gib / 4096})
        self.assertEqual(sessions(inputs(), False, 3, half_a_gib), {"memory": 0})

    def test_a_take_over_waits_for_lease_and_election(self):
        self.assertAlmostEqual(take_over_s(inputs(), False, 0, False), 4.002)
        self.assertAlmostEqual(take_over_s(inputs(), False, 0, True), 10.002)
        self.assertAlmostEqual(take_over_s(inputs(), True, 0, True), 4.001)
        self.assertAlmostEqual(take_over_s(inputs(), True, 2, False), 5.001)

    def test_control_traffic(self):
        used, left = control(inputs(), False, 94)
        self.assertAlmostEqual(used, 0.1)
        self.assertEqual(left, 394)

    def test_the_low_end_is_never_above_the_high_end(self):
        given = Inputs((BENCHES / "cluster_capacity.toml").read_text())
        for messages in (messages_today, messages_next):
            for load in ("busy", "sparse"):
                low, high = (messages(given, load, best) for best in (False, True))
                for name in low:
                    self.assertLessEqual(low[name], high[name], f"{load}: {name}")
        self.assertIn("| one node serves: sessions |", report(given))

    def test_a_value_without_a_source_or_in_the_wrong_order_is_refused(self):
        for line in ("range = [1, 2]", "range = [2, 1]\nsource = 'x'", "source = 'x'"):
            with self.assertRaisesRegex(ValueError, "a.b.*range.*source"):
                Inputs(f"[a.b]\n{line}")

    def test_the_program_prints_a_table(self):
        done = subprocess.run([sys.executable, BENCHES / "cluster_capacity.py"], capture_output=True, text=True, timeout=60)
        self.assertIn("ends first", done.stdout, done.stderr)


if __name__ == "__main__":
    unittest.main()
