"""A gateway's connection upstream when its network changes: it moves with its own address and the broker's, and comes back
with 0-RTT; what devices publish meanwhile arrives in order and once. The gateway is on the client's host of a network of the test's own."""

import time
import unittest

from broker import Broker, binary, eventually
from namespaces import BROKER, CLIENT, ELSEWHERE
from test_gateway import Publisher, Subscriber, figure
from test_migration import PATIENT, OwnNetwork, on_lines

MESSAGES = 50
UP = '[[upstream.up]]\nfilter = "sensor/#"\nto_prefix = "site/"\n'


class Moving(OwnNetwork):
    def setUp(self):
        super().setUp()
        self.start_broker(address="0.0.0.0")
        port = self.broker.ports["quic"]
        url = f"quic://{BROKER}:{port},{ELSEWHERE}:{port}"
        upstream = f'[upstream]\nurl = "{url}"\nfallback_port = 0\nca_file = "{self.broker.ca}"\nname = "gw"\nkeep_alive_s = 5\n{UP}'
        self.gateway = Broker(upstream, prefix=self.site.inside("client"))
        self.addCleanup(self.gateway.close)
        self.got = []
        subscriber = self.local("broker", self.broker, "sub", "-q", "1", "-t", "site/#", "-i", "above", "-c", "-x", "600")
        on_lines(subscriber, self.got.append)
        eventually("the subscription", lambda: self.metric("subscriptions") == 1)
        self.device = self.local("client", self.gateway, "pub", "-q", "1", "-t", "sensor/probe/co2", "-l")
        self.sent = []

    def local(self, host: str, broker: Broker, verb: str, *words: str):
        return self.run_on(host, binary(), verb, f"mqtt://127.0.0.1:{broker.ports['mqtt']}", *words)

    def publish(self):
        """Some readings, and waits until they are upstream."""
        for _ in range(MESSAGES):
            self.sent.append(str(len(self.sent)))
            self.device.stdin.write(self.sent[-1] + "\n")
        eventually("the readings", lambda: len(self.got) >= len(self.sent))
        self.assertEqual(self.got, self.sent)

    def figure(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.gateway.ports['http']}/metrics"
        read = f"import urllib.request as u; print(u.urlopen('{url}').read().decode())"
        page = self.site.ask("client", "python3", "-c", read)
        line = next(line for line in page.splitlines() if line.startswith(f"fulmar_gateway_{name} "))
        return float(line.split()[-1])

    def losses(self) -> int:
        """From the log, which can be read without a process for each time: the gateway dials again at once."""
        return (self.gateway.data / "log").read_text().count("trying again in")

    def test_it_moves_with_its_address_and_comes_back_with_early_data(self):
        self.publish()
        self.site.address("router", "client", "10.66.3.1")
        self.site.address("client", "wire", "10.66.3.2")
        self.site.address("client", "wire", CLIENT, "delete")
        self.site.route("client", "10.66.3.1")
        self.publish()
        eventually("the move", lambda: self.figure("migrations_total") == 1)
        self.assertEqual(self.figure("connections_total"), 1, "it moved and did not connect again")
        self.assertRegex(self.log(), r"changed its address.* to=\S*10\.66\.3\.2:")

        # The link is down until the gateway has given the connection up, and no longer: an attempt that reaches nobody
        # uses the ticket, and then it takes another time.
        for times in range(1, 11):
            before = self.losses()
            self.site.down("router", "client")
            eventually("the loss", lambda before=before: self.losses() > before)
            self.site.up("router", "client")
            self.site.route("client", "10.66.3.1")
            self.publish()
            self.assertEqual(self.figure("connections_total"), 1 + times)
            if self.figure("early_data_total") > 0:
                return
        self.fail("it never came back with early data")

    def test_it_follows_the_broker_to_another_address(self):
        self.publish()
        began = time.monotonic()
        self.move_broker()
        self.publish()
        self.assertLess(time.monotonic() - began, PATIENT, "the gap, and the readings after it")
        self.assertEqual(self.figure("connections_total"), 1, "it moved and did not connect again")
        self.assertRegex(self.log(), rf"to another address.*{ELSEWHERE}")


class OverTls(unittest.TestCase):
    def test_a_bridge_over_tls(self):
        upstream = Broker()
        self.addCleanup(upstream.close)
        url = f"mqtts://localhost:{upstream.ports['mqtts']}"
        gateway = Broker(f'[upstream]\nurl = "{url}"\nca_file = "{upstream.ca}"\nname = "gw"\n{UP}')
        self.addCleanup(gateway.close)
        above = Subscriber(self, upstream.ports["mqtt"], "site/#")
        device = Publisher(self, gateway.ports["mqtt"])
        for number in range(MESSAGES):
            device.client.publish("sensor/probe/co2", str(number), 1)
        eventually("the readings", lambda: above.count >= MESSAGES)
        expected = [str(number) for number in range(MESSAGES)]
        self.assertEqual([payload for payload, _ in above.got["site/sensor/probe/co2"]], expected)
        self.assertEqual(figure(gateway, 'connected{transport="mqtts"}'), 1)


if __name__ == "__main__":
    unittest.main()
