"""A rolling upgrade as docs/cluster.md has it: one node after the other, that which serves last, while clients publish.

FULMAR_BEFORE names the program of the version before; without it, the order is tested with one program. What two
versions exchange has numbers: those of records and the database are tested in crates/store, the stream's in
test_cluster_refused.py."""

import os
import unittest

import paho.mqtt.client as paho
from broker import binary, eventually
from cluster_nodes import Node, logs, serving, wait_serving
from nats_servers import Servers


class Upgrade(unittest.TestCase):
    def test_one_node_after_the_other_and_back(self):
        before = os.environ.get("FULMAR_BEFORE") or binary()
        servers = Servers(1)
        self.addCleanup(servers.close)
        nodes = [Node(servers, name, development=True) for name in "abc"]
        for node in nodes:
            self.addCleanup(node.close)
            node.program = before
        nodes[0].command("init")
        nodes[0].start()
        wait_serving(nodes)
        for node in nodes[1:]:
            self.stand_by(node.start())
        self.published = []
        self.publish(nodes)
        # Up; and down again, because an upgrade may have to be taken back.
        for program in (binary(), before):
            for node in (node for node in list(nodes) if node is not serving(nodes)):
                self.replace(node, program)
                self.publish(nodes)
            last = serving(nodes)
            last.command("drain", last.name)
            wait_serving(nodes, but=last)
            # Its records are read by the version that served before.
            self.publish(nodes)
            self.stand_by(last)
            self.replace(last, program)
            self.publish(nodes)
        self.retained(serving(nodes))

    def replace(self, node, program):
        self.assertEqual(node.stop(), 0)
        node.program = program
        self.stand_by(node.start())

    def stand_by(self, node):
        try:
            eventually(f"{node.name} stands by", lambda: node.ready()[0] == 503)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs([node])}") from None

    def publish(self, nodes):
        topic = f"upgrade/{len(self.published)}"
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.connect("127.0.0.1", serving(nodes).mqtt)
        client.loop_start()
        client.publish(topic, topic, 1, retain=True).wait_for_publish(30)
        self.published.append(topic)
        client.disconnect()
        client.loop_stop()

    def retained(self, node):
        got = set()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.on_message = lambda client, data, message: got.add(message.topic)
        client.on_connect = lambda client, *rest: client.subscribe("upgrade/#", 1)
        client.connect("127.0.0.1", node.mqtt)
        client.loop_start()
        eventually("all retained messages", lambda: got == set(self.published))
        client.disconnect()
        client.loop_stop()


if __name__ == "__main__":
    unittest.main()
