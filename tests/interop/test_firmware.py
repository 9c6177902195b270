"""The firmware's sensor in QEMU against a broker of ours: handshake, commands, loss of power, 0-RTT, loss
of packets, replay; images with other kinds of trust, and with DHCP; and that it notices when its stack
overflows.

FULMAR_FIRMWARE_CONNECTIONS says how many connections are made through the lossy link (20)."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from broker import PATIENCE_S, Broker, binary, eventually
from relay import Relay, replayed

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "firmware" / "tools"))

import device  # noqa: E402

CONNECTIONS = int(os.environ.get("FULMAR_FIRMWARE_CONNECTIONS", "20"))
LOSS = 0.1
CLIENT = "sensor-1"


def image(features="ed25519") -> pathlib.Path:
    """The firmware, built if need be; the test is skipped where this Rust cannot build it."""
    env = {**os.environ, "FEATURES": features}
    done = subprocess.run([ROOT / "scripts" / "firmware", "image"], env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode == 3:
        raise unittest.SkipTest("this Rust cannot build for the microcontroller")
    if done.returncode:
        raise unittest.TestCase.failureException("the firmware does not build")
    return pathlib.Path(done.stdout.splitlines()[-1])


class Firmware(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.image = image()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def fulmar(self, *arguments) -> str:
        """What a command of fulmar's prints."""
        done = subprocess.run([binary(), *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    def public_key(self, certificate: str) -> bytes:
        about = json.loads(self.fulmar("cert", "show", str(self.folder / certificate), "--json"))
        return bytes.fromhex(about["public_key"])

    def start_broker(self, settings="", kind=("--ed25519",)) -> Broker:
        """A broker with a key of this kind, which the device will be given."""
        ca = ["--dir", str(self.folder / "ca")]
        self.fulmar("cert", "issue", "localhost", *kind, "--out", str(self.folder), *ca)
        self.key = self.public_key("localhost.pem")
        tls = f'[tls]\ncert = "{self.folder}/localhost.pem"\nkey = "{self.folder}/localhost.key"\n'
        broker = Broker(tls + settings)
        self.addCleanup(broker.close)
        return broker

    def boot(self, port: int, image: pathlib.Path | None = None, **settings) -> list[str]:
        """Runs the device until it switches itself off; what it logged."""
        made = device.Settings(port, self.key, client_id=CLIENT, **settings)
        command = device.command(image or self.image, self.folder, made)
        done = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=5 * PATIENCE_S)
        lines = done.stdout.decode("ascii", "replace").splitlines()
        print("\n".join(lines[-60:]))
        return lines

    def readings(self, broker) -> subprocess.Popen:
        """A subscriber of the readings, whose subscription stands."""
        url = f"mqtt://127.0.0.1:{broker.ports['mqtt']}"
        log = self.folder / "readings"
        with open(log, "wb") as out:
            # It prints the retained message first, and so tells that it hears.
            self.fulmar("pub", url, "-t", f"sensors/{CLIENT}/reading", "-m", "begin", "-q", "1", "-r")
            reader = subprocess.Popen([binary(), "sub", url, "-t", f"sensors/{CLIENT}/reading", "-q", "1"],
                                      stdout=out)
        self.addCleanup(reader.wait, 20)
        self.addCleanup(reader.terminate)
        self.received = lambda: log.read_text().split()[1:]
        eventually("the subscriber", lambda: log.read_text() == "begin\n")
        return reader

    def command(self, broker, text: str):
        url = f"mqtt://127.0.0.1:{broker.ports['mqtt']}"
        self.fulmar("pub", url, "-t", f"sensors/{CLIENT}/command", "-m", text, "-q", "1")

    def test_publishes_hears_loses_its_power_and_comes_back_early(self):
        broker = self.start_broker()
        self.readings(broker)
        relay = Relay(broker.ports["quic"])
        self.addCleanup(relay.close)
        first = self.boot(relay.port, wakes=1)
        self.assertTrue(any(line.startswith("handshake: new") for line in first), first)
        self.assertTrue(any(line.startswith("connected: session new") for line in first))
        self.assertIn("subscribed: reason 1", first)
        self.assertEqual(first[-1], "off")
        # While it is off.
        self.command(broker, "led on")
        # The next process knows only what is in the ticket's page.
        second = self.boot(relay.port, wakes=1)
        self.assertTrue(any(line.startswith("handshake: resumed, early data accepted") for line in second), second)
        self.assertTrue(any(line.startswith("connected: session present") for line in second))
        self.assertIn("command: led on", second)
        self.assertNotIn("unknown command", second)
        eventually("both readings", lambda: len(self.received()) == 2)
        # A 0-RTT packet (its long header's type is 1) is in the first datagram, behind the Initial.
        self.assertIn(1, packet_types(relay.firsts()[1]))
        self.assert_published(first + second, 2)

        # Somebody recorded what the device sent and sends it again: it is answered, and nothing is done.
        for connection in list(relay.sent.values()):
            # Not as long as the broker takes it for a late datagram of the connection that was closed.
            eventually("the broker answers it", lambda: replayed(broker.ports["quic"], connection[:1]))
            replayed(broker.ports["quic"], connection)
        self.fulmar("pub", f"mqtt://127.0.0.1:{broker.ports['mqtt']}", "-q", "1",
                    "-t", f"sensors/{CLIENT}/reading", "-m", "end")
        eventually("the last message", lambda: self.received()[-1:] == ["end"])
        self.assertEqual(len(self.received()), 3, "two readings and the end: nothing was done twice")

    def test_every_connection_completes_at_ten_percent_loss(self):
        broker = self.start_broker()
        relay = Relay(broker.ports["quic"], loss=LOSS, seed=7)
        self.addCleanup(relay.close)
        half = CONNECTIONS // 2
        new = self.boot(relay.port, wakes=half, interval_s=1, resume=False)
        (self.folder / "ticket.bin").unlink(missing_ok=True)
        resumed = self.boot(relay.port, wakes=CONNECTIONS - half, interval_s=1)
        self.assert_published(new + resumed, CONNECTIONS)
        self.assertTrue(all(relay.lost.values()), "nothing was lost: the test shows nothing")
        early = sum(line.startswith("handshake: resumed, early data accepted") for line in resumed)
        print(f"{CONNECTIONS} connections, {early} with early data; datagrams lost: {relay.lost}")
        self.assertGreater(early, 0)

    def test_a_broker_with_another_key_is_refused(self):
        broker = self.start_broker()
        self.key = bytes(reversed(self.key))
        lines = self.boot(broker.ports["quic"], wakes=1)
        self.assert_untrusted(lines)

    def test_a_pinned_p256_key(self):
        broker = self.start_broker(kind=())
        lines = self.boot(broker.ports["quic"], image("p256"), wakes=1)
        self.assert_published(lines, 1)
        self.key = self.key[:1] + bytes(reversed(self.key[1:]))
        (self.folder / "ticket.bin").unlink()
        self.assert_untrusted(self.boot(broker.ports["quic"], image("p256"), wakes=1))

    def test_a_pinned_authority(self):
        broker = self.start_broker(kind=())
        own, self.key = self.key, self.public_key("ca/ca.pem")
        made = image("x509")
        lines = self.boot(broker.ports["quic"], made, wakes=1, authority=True)
        self.assert_published(lines, 1)
        (self.folder / "ticket.bin").unlink()
        lines = self.boot(broker.ports["quic"], made, wakes=1, authority=True, server_name="other")
        self.assert_untrusted(lines, "46")
        # The broker's own key signed nobody's certificate.
        self.key = own
        self.assert_untrusted(self.boot(broker.ports["quic"], made, wakes=1, authority=True), "48")

    def test_addresses_by_dhcp(self):
        broker = self.start_broker()
        lines = self.boot(broker.ports["quic"], image("ed25519,dhcp"), wakes=1, network=None)
        self.assert_published(lines, 1)

    def test_without_an_address_it_says_what_to_set(self):
        self.key = bytes(32)
        lines = self.boot(1, wakes=1, network=None)
        self.assertIn("no address: set --address and --gateway, or build with dhcp", lines)

    def test_a_stack_that_overflows_is_noticed(self):
        self.key = bytes(32)
        lines = self.boot(1, image=image("ed25519,overflow"), wakes=1)
        self.assertTrue(any(line.startswith("fault: stack overflow") for line in lines), lines)

    def test_what_make_firmware_run_shows(self):
        command = [sys.executable, ROOT / "firmware" / "tools" / "run.py", binary(), self.image]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
            timer = threading.Timer(5 * PATIENCE_S, shown.kill)
            timer.start()
            lines = []
            for line in shown.stdout:
                lines.append(line.strip())
                if line.endswith("| command: led on\n"):
                    shown.send_signal(signal.SIGINT)
            timer.cancel()
        print("\n".join(lines))
        self.assertIn("device | command: led on", lines)
        self.assertTrue(any(line.startswith(f"broker | sensors/{CLIENT}/reading ") for line in lines))
        self.assertEqual(shown.returncode, 0)

    def assert_untrusted(self, lines: list[str], alert="51"):
        """The device broke off with this alert (51: decrypt_error) and said nothing to the broker."""
        self.assertIn(f"failed, TLS alert {alert}", lines)
        self.assertFalse(any(line.startswith(("handshake", "published")) for line in lines))

    def assert_published(self, lines: list[str], count: int):
        published = sum(line.startswith("published: reason ") and int(line.split()[2].strip(",")) < 0x80
                        for line in lines)
        self.assertEqual(published, count, [line for line in lines if line.startswith("failed")])
        peaks = [int(line.split()[-1]) for line in lines if line.startswith("stack peak")]
        print(f"stack peak: {max(peaks)} bytes")


def packet_types(datagram: bytes) -> list[int]:
    """Types of the long-header packets (RFC 9000 section 17.2) that are coalesced in a datagram."""
    types, at = [], 0
    while at < len(datagram) and datagram[at] & 0x80:
        kind = datagram[at] >> 4 & 3
        types.append(kind)
        at += 5
        for _ in range(2):
            at += 1 + datagram[at]
        if kind == 0:
            length, at = variable(datagram, at)
            at += length
        length, at = variable(datagram, at)
        at += length
    return types


def variable(data: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer and where it ends."""
    size = 1 << (data[at] >> 6)
    return int.from_bytes(data[at:at + size], "big") & ((1 << 8 * size - 2) - 1), at + size


if __name__ == "__main__":
    unittest.main()
