"""Files and streams to and from NRL's NORM library, a fifth of all datagrams lost on the way; it loses them itself."""

import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import ports
from broker import binary
from norm_peer import library

PEER = str(pathlib.Path(__file__).parent / "norm_peer.py")
BYTES = 1_000_000
LOSS = "20"
RATE = 20_000_000
# Much longer than a peer of this machine is asked for an acknowledgement, and shorter than we wait for a silent sender.
STOPPED_S = 2
PATIENCE_S = float(os.environ.get("FULMAR_PATIENCE_S", 60))


@unittest.skipUnless(library(), "NRL's NORM library (Debian: libnorm-dev) is not installed")
class Norm(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.into = self.folder / "into"
        self.into.mkdir()
        self.file = self.folder / "file.bin"
        self.file.write_bytes(os.urandom(BYTES))
        self.port = str(ports.take(1)[0])

    def start(self, *command) -> subprocess.Popen:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def outcome(self, process: subprocess.Popen) -> tuple:
        """What it has printed when it has ended well."""
        try:
            told = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail(f"it does not end: {process.communicate()}")
        self.assertEqual(process.returncode, 0, told)
        return told

    def until_begun(self):
        """Waits until we have received something of the file: a hidden file is there."""
        deadline = time.monotonic() + PATIENCE_S
        while not any(self.into.iterdir()):
            self.assertLess(time.monotonic(), deadline, "nothing has arrived")
            time.sleep(0.005)

    def assert_arrived(self):
        arrived = (self.into / self.file.name).read_bytes()
        self.assertEqual(hashlib.sha256(arrived).digest(), hashlib.sha256(self.file.read_bytes()).digest())

    def test_it_receives_what_we_send(self):
        peer = self.start(sys.executable, PEER, "receive", "127.0.0.1", self.port, str(self.into), LOSS)
        self.assertEqual(peer.stdout.readline(), "ready\n")
        send = [binary(), "send", str(self.file), "--to", f"127.0.0.1:{self.port}", "--rate", str(RATE)]
        # It ends well only if all is acknowledged.
        subprocess.run(send, check=True, timeout=PATIENCE_S, capture_output=True)
        self.assertEqual(peer.stdout.readline().strip(), str(self.into / self.file.name))
        self.assert_arrived()

    def test_we_receive_what_it_sends(self):
        ours = self.start(
            binary(), "receive", "--from", f"127.0.0.1:{self.port}", "--dir", str(self.into), "--count", "1", "--json"
        )
        self.assertIn("ready", ours.stdout.readline())
        peer = [sys.executable, PEER, "send", "127.0.0.1", self.port, str(self.file), LOSS, str(RATE)]
        sent = subprocess.run(peer, check=True, timeout=PATIENCE_S, capture_output=True, text=True)
        self.assertEqual(sent.stdout, "acknowledged\n")
        self.outcome(ours)
        self.assert_arrived()

    def test_it_waits_for_us(self):
        """The machine is busy with something else, and we do not run for longer than the library asks us."""
        ours = self.start(
            binary(), "receive", "--from", f"127.0.0.1:{self.port}", "--dir", str(self.into), "--count", "1", "--json"
        )
        self.assertIn("ready", ours.stdout.readline())
        # Slowly: it is to be stopped before all has arrived.
        peer = self.start(sys.executable, PEER, "send", "127.0.0.1", self.port, str(self.file), LOSS, str(RATE // 10))
        self.until_begun()
        ours.send_signal(signal.SIGSTOP)
        with self.assertRaises(subprocess.TimeoutExpired, msg="nothing is acknowledged yet"):
            peer.wait(STOPPED_S)
        ours.send_signal(signal.SIGCONT)
        self.assertEqual(self.outcome(peer)[0], "acknowledged\n")
        self.outcome(ours)
        self.assert_arrived()

    def test_it_receives_a_stream(self):
        into = self.folder / "stream"
        peer = self.start(sys.executable, PEER, "receive-stream", "127.0.0.1", self.port, str(into), LOSS)
        self.assertEqual(peer.stdout.readline(), "ready\n")
        send = [binary(), "send", "-", "--to", f"127.0.0.1:{self.port}", "--rate", str(RATE)]
        with self.file.open("rb") as file:
            subprocess.run(send, check=True, timeout=PATIENCE_S, capture_output=True, stdin=file)
        self.assertEqual(peer.stdout.readline().strip(), str(into), "its end came, and nothing was lost")
        self.assertEqual(into.read_bytes(), self.file.read_bytes())

    def test_it_sends_a_stream(self):
        address = f"127.0.0.1:{self.port}"
        ours = [binary(), "receive", "--from", address, "--stdout", "--json"]
        ours = subprocess.Popen(ours, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(ours.kill)
        self.assertIn(b"ready", ours.stderr.readline())
        peer = self.start(sys.executable, PEER, "send-stream", "127.0.0.1", self.port, str(self.file), LOSS, str(RATE))
        arrived, _ = self.outcome(ours)
        self.assertEqual(arrived, self.file.read_bytes())
        self.assertEqual(peer.stdout.readline(), "acknowledged\n")


if __name__ == "__main__":
    unittest.main()
