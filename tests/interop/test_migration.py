"""QUIC connections over changing networks, in namespaces of the tests' own: a translator that gives a client
another port and address, a host that gets another address, be it the client's or the broker's, a host that vanishes.

In the first three, messages flow all the time at QoS 1 and 2 and towards a subscriber; each arrives, in order
and once, and nobody connects again. A client that says nothing follows its host as soon as the kernel tells it."""

import pathlib
import shutil
import subprocess
import sys
import threading
import time
import unittest

from broker import Broker, binary, eventually
from namespaces import BROKER, CLIENT, ELSEWHERE, ROUTER_INSIDE, ROUTER_OUTSIDE, Site

# A name of the broker's host, which resolves to another address when that moves.
NAME = "broker.test"
# Seconds in which clients find a broker that has moved, and what they publish then arrives, on a busy machine, too. Its silence
# alone ended a connection after 26.
PATIENT = 10
MESSAGES_A_PHASE = 200
UNDER_WAY = 40
# Seconds without a packet after which the broker forgets a client, in the test where clients vanish. They must
# all come within it, also on a busy machine.
IDLE_TIMEOUT_S = 15
VANISHING = 50
# Seconds after which `fulmar pub`, if it has nothing to say, shows the broker that it is there.
SIGN_OF_LIFE_S = 12
CLIENTS = str(pathlib.Path(__file__).parent / "quic_clients.py")
NAT = str(pathlib.Path(__file__).parent / "nat.py")


def on_lines(process: subprocess.Popen, take):
    """Hands over what a process prints, line by line, on a thread of its own."""

    def follow():
        for line in process.stdout:
            take(line.rstrip("\n"))

    threading.Thread(target=follow, daemon=True).start()


class OwnNetwork(unittest.TestCase):
    def setUp(self):
        self.site = Site()
        self.addCleanup(self.site.close)

    def start_broker(self, settings="", address=BROKER):
        # More workers than one, or a packet from a new address could not come to the wrong one.
        settings = (
            f'[server]\nworkers = 4\n[auth]\nallow_anonymous = "always"\n'
            f'[tls]\nnames = ["{BROKER}", "{ELSEWHERE}", "{ROUTER_INSIDE}", "{NAME}"]\n{settings}'
        )
        self.broker = Broker(settings, prefix=self.site.inside("broker"), addresses={"quic": address})
        self.addCleanup(self.broker.close)

    def move_broker(self):
        """Its host gets another address and loses the old one."""
        self.site.address("router", "broker", "10.66.5.1")
        self.site.address("broker", "wire", ELSEWHERE)
        self.site.address("broker", "wire", BROKER, "delete")
        self.site.route("broker", "10.66.5.1")

    def run_on(self, host: str, *command: str) -> subprocess.Popen:
        """A program that ends with the test at the latest."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        process = subprocess.Popen(self.site.inside(host, *command), **pipes)

        def end():
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

        self.addCleanup(end)
        return process

    def metric(self, name: str) -> int:
        url = f"http://127.0.0.1:{self.broker.ports['http']}/metrics"
        page = self.site.ask("broker", "python3", "-c", f"import urllib.request as u; print(u.urlopen('{url}').read().decode())")
        line = next(line for line in page.splitlines() if line.startswith(f"fulmar_{name} "))
        return int(line.split()[-1])

    def connections(self) -> int:
        return self.metric('connections{transport="quic"}')

    def log(self) -> str:
        return (self.broker.data / "log").read_text()


class Migration(OwnNetwork):
    def start_clients(self, *urls: str):
        """A subscriber that connects to the first of these URLs, and publishers that connect to the last."""
        # Who only listens learns of a change when it speaks next: after this many seconds of silence.
        common = ["--cafile", self.broker.ca, "-k", "4", "-q"]
        self.got = {"1": [], "2": []}

        def take(line):
            topic, payload = line.split(" ", 1)
            self.got[topic.removeprefix("move/")].append(payload)

        sub = self.run_on("client", binary(), "sub", urls[0], *common, "2", "-t", "move/+", "-v")
        on_lines(sub, take)
        eventually("the subscription", lambda: self.metric("subscriptions") == 1)
        self.publishers = [
            self.run_on("client", binary(), "pub", urls[-1], *common, qos, "-t", f"move/{qos}", "-l") for qos in self.got
        ]
        self.sent = []

    def publish_phase(self):
        """Publishes at both levels, never far ahead of what has arrived, and leaves messages under way."""
        for _ in range(MESSAGES_A_PHASE):
            text = f"message {len(self.sent)}"
            self.sent.append(text)
            for publisher in self.publishers:
                publisher.stdin.write(text + "\n")
            enough = len(self.sent) - UNDER_WAY
            eventually("messages", lambda: all(len(got) >= enough for got in self.got.values()))

    def finish(self, changes: int, addresses: list[str]):
        for publisher in self.publishers:
            publisher.stdin.close()
        for publisher in self.publishers:
            # Ends well when all it published is acknowledged.
            self.assertEqual(publisher.wait(60), 0)
        eventually("all messages", lambda: all(len(got) >= len(self.sent) for got in self.got.values()))
        for qos, got in self.got.items():
            self.assertEqual(got, self.sent, f"QoS {qos}")
        clients = len(self.publishers) + 1
        self.assertEqual(self.metric('connections_opened_total{transport="quic"}'), clients, "somebody connected again")
        self.assertGreaterEqual(self.metric("quic_migrations_total"), clients * changes)
        for address in addresses:
            self.assertRegex(self.log(), rf"changed its address.* to=\S*{address}:")

    def test_a_translator_changes_port_and_address_mid_flow(self):
        self.start_broker()
        words = [f"{ROUTER_INSIDE}:14567", f"{BROKER}:{self.broker.ports['quic']}", ROUTER_OUTSIDE[0]]
        nat = self.run_on("router", sys.executable, NAT, *words)
        self.assertEqual(nat.stdout.readline(), "ready\n")
        self.start_clients(f"quic://{ROUTER_INSIDE}:14567")
        for outside in (ROUTER_OUTSIDE[1], ROUTER_OUTSIDE[0]):
            self.publish_phase()
            nat.stdin.write(outside + "\n")
            self.assertEqual(nat.stdout.readline(), "moved\n")
        self.publish_phase()
        self.finish(2, ROUTER_OUTSIDE)

    def test_the_clients_host_gets_another_address_mid_flow(self):
        self.start_broker()
        self.start_clients(f"quic://{BROKER}:{self.broker.ports['quic']}")
        self.publish_phase()
        before = CLIENT
        for after, gateway in (("10.66.3.2", "10.66.3.1"), ("10.66.4.2", "10.66.4.1")):
            self.site.address("router", "client", gateway)
            self.site.address("client", "wire", after)
            self.site.address("client", "wire", before, "delete")
            self.site.route("client", gateway)
            before = after
            self.publish_phase()
        self.finish(2, ["10.66.3.2", "10.66.4.2"])

    def test_the_brokers_host_gets_another_address_mid_flow(self):
        self.start_broker(address="0.0.0.0")
        port = self.broker.ports["quic"]
        hosts = pathlib.Path("/etc/netns", self.site.names["client"], "hosts")
        hosts.parent.mkdir(parents=True)
        self.addCleanup(shutil.rmtree, hosts.parent)
        hosts.write_text(f"{BROKER} {NAME}\n")
        # One knows a name, which moves, the others two more addresses: one where nobody listens, which refuses, and the next.
        others = f"{ROUTER_INSIDE}:{port},{ELSEWHERE}:{port}"
        self.start_clients(f"quic://{NAME}:{port}", f"quic://{BROKER}:{port},{others}")
        self.publish_phase()
        hosts.write_text(f"{ELSEWHERE} {NAME}\n")
        since = time.monotonic()
        self.move_broker()
        self.publish_phase()
        took = time.monotonic() - since
        self.assertLess(took, PATIENT, "the gap, and the messages after it")
        self.finish(1, [])
        self.assertRegex(self.log(), rf"to another address.*{ELSEWHERE}")

    def test_an_idle_client_moves_when_the_kernel_announces_another_address(self):
        self.start_broker()
        url = f"quic://{BROKER}:{self.broker.ports['quic']}"
        since = time.monotonic()
        words = [binary(), "pub", url, "--cafile", self.broker.ca, "-k", "600", "-q", "1", "-t", "t", "-l"]
        client = self.run_on("client", *words)
        eventually("the client", lambda: self.connections() == 1)
        self.site.address("router", "client", "10.66.3.1")
        self.site.address("client", "wire", "10.66.3.2")
        self.site.address("client", "wire", CLIENT, "delete")
        self.site.route("client", "10.66.3.1")
        eventually("the move", lambda: self.metric("quic_migrations_total") == 1)
        self.assertLess(time.monotonic() - since, SIGN_OF_LIFE_S, "nothing but its next packet made it move")
        client.stdin.write("still here\n")
        client.stdin.close()
        self.assertEqual(client.wait(60), 0)
        self.assertEqual(self.metric('connections_opened_total{transport="quic"}'), 1)


class Vanishing(OwnNetwork):
    def test_vanished_clients_leave_nothing_behind(self):
        self.start_broker(f"[quic]\nidle_timeout_s = {IDLE_TIMEOUT_S}\nretry = \"never\"\n")
        url = f"quic://{BROKER}:{self.broker.ports['quic']}"
        # One that stays, on the broker's own host, so that it is not counted on the wire.
        self.run_on("broker", binary(), "sub", url, "--cafile", self.broker.ca, "-k", "5", "-t", "stays")
        eventually("one client", lambda: self.metric("subscriptions") == 1)
        resident = [self.vanish() for _ in range(2)]
        # An idle connection takes more than 20 KiB; what allocators keep for the next is far less.
        kept = resident[-1] - resident[0]
        self.assertLess(kept, 20 * VANISHING, f"memory grows with vanished clients: KiB {resident}")

    def vanish(self) -> int:
        """Clients come and their link dies without a word. Gives the broker's memory after they are forgotten."""
        words = [BROKER, str(self.broker.ports["quic"]), self.broker.ca, str(VANISHING)]
        clients = self.run_on("client", sys.executable, CLIENTS, *words)
        self.assertEqual(clients.stdout.readline(), "ready\n")
        self.assertEqual((self.connections(), self.metric("sessions")), (VANISHING + 1, VANISHING + 1))
        sent = self.quiet()
        self.site.down("router", "client")
        since = time.monotonic()
        eventually("the clients to be forgotten", lambda: self.connections() == 1)
        # The last packet came before the link went down.
        self.assertLess(time.monotonic() - since, IDLE_TIMEOUT_S + 10)
        # At most one each: these clients' own idle timeout is shorter than their Keep Alive, so they are asked once.
        asked = self.site.packets_sent("broker") - sent
        self.assertLessEqual(asked, VANISHING, "the broker sent packets to keep connections alive")
        self.assertEqual((self.metric("sessions"), self.metric("subscriptions")), (1, 1))
        clients.kill()
        clients.wait()
        self.site.up("router", "client")
        # Taking the link down took its routes along.
        self.site.route("client", ROUTER_INSIDE)
        status = pathlib.Path(f"/proc/{self.broker.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def quiet(self) -> int:
        """Waits until the last acknowledgement has been sent."""
        sent = self.site.packets_sent("broker")
        while True:
            time.sleep(0.3)
            now = self.site.packets_sent("broker")
            if now == sent:
                return sent
            sent = now


if __name__ == "__main__":
    unittest.main()
