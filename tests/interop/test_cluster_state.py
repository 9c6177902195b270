"""What nodes of a cluster share besides sessions and messages: users and their rules, bans and the log of changes. They
are changed at the node that serves with `fulmar user`, `fulmar ctl` and mosquitto's own `mosquitto_ctrl`; after kill -9
of it, the next node has them.

FULMAR_CLUSTER_CHANGES makes it long."""

import collections
import json
import os
import re
import subprocess
import threading
import unittest
import urllib.request

import paho.mqtt.client as paho
from broker import Broker, binary, eventually
from cluster_nodes import begin, serving, wait_serving
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from test_cluster import Base, setUpModule  # noqa: F401

KILLS = int(os.environ.get("FULMAR_CLUSTER_CHANGES", "3"))


def fulmar(node, *arguments, text=None, check=True):
    """The program with a node's data folder."""
    done = subprocess.run([binary(), *arguments, "--data", node.data / "data"], input=text, capture_output=True,
                          text=True, timeout=120)
    if check and done.returncode:
        raise AssertionError(f"fulmar {arguments}: {done.stderr}")
    return done


def connack(node, user=None, password=None, client_id=""):
    """The reason code with which a node answers a CONNECT."""
    codes = []
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
    made.on_connect = lambda client, data, flags, reason, properties: codes.append(reason.value)
    if user:
        made.username_pw_set(user, password)
    made.connect("127.0.0.1", node.mqtt)
    made.loop_start()
    eventually("a CONNACK", lambda: codes, 30)
    made.disconnect()
    made.loop_stop()
    return codes[0]


def granted(node, user, password, topic):
    """The reason code of a SUBACK."""
    codes = []
    made = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    made.username_pw_set(user, password)
    made.on_connect = lambda client, *rest: client.subscribe(topic, 1)
    made.on_subscribe = lambda client, data, mid, reasons, properties: codes.append(reasons[0].value)
    made.connect("127.0.0.1", node.mqtt)
    made.loop_start()
    eventually("a SUBACK", lambda: codes, 30)
    made.disconnect()
    made.loop_stop()
    return codes[0]


class State(Base):
    def nodes(self, servers, count=2):
        nodes = [self.node(servers, f"node-{index}", development=True) for index in range(count)]
        for node in nodes:
            # Nobody without a user.
            text = node.config.read_text().replace('allow_anonymous = "always"', 'allow_anonymous = "never"')
            node.config.write_text(text)
        return nodes

    def audit(self, node):
        lines = fulmar(node, "audit", "--json").stdout.splitlines()
        return [(entry["action"], entry["object"], entry.get("result")) for entry in map(json.loads, lines)]

    def test_users_rules_bans_and_the_log_of_changes_are_there_after_kill_9(self):
        servers = self.servers(1)
        nodes = self.nodes(servers)
        # Of the broker that it was before.
        fulmar(nodes[0], "user", "add", "ann", "--admin", "--config", nodes[0].config, text="first-pass\n")
        first, [second] = begin(nodes)
        self.assertEqual(connack(first, "ann", "first-pass"), 0)

        fulmar(first, "user", "add", "bob", text="second-pass\n")
        fulmar(first, "user", "add", "carl", "--admin", text="third-pass\n")
        fulmar(first, "user", "add", "dora", text="fourth-pass\n")
        fulmar(first, "user", "remove", "dora")
        fulmar(first, "user", "passwd", "bob", text="other-pass\n")
        ctrl = ["mosquitto_ctrl", "-h", "127.0.0.1", "-p", str(first.mqtt), "-u", "ann", "-P", "first-pass", "dynsec"]
        for command in (["createRole", "readers"], ["addRoleACL", "readers", "subscribePattern", "plant/#", "allow", "5"],
                        ["addClientRole", "bob", "readers", "1"]):
            subprocess.run([*ctrl, *command], check=True, capture_output=True, timeout=60)
        fulmar(first, "ctl", "clients", "ban", "--client", "evil", "--for", "1h")
        self.assertEqual(granted(first, "bob", "other-pass", "plant/1"), 1)
        listed = fulmar(first, "user", "list").stdout
        self.assertIn("bob\tbob\trole=readers", listed)

        says = f"{first.name} at 127.0.0.1:{first.mqtt} serves"
        for command in (["user", "add", "eve"], ["ctl", "users", "list"], ["ctl", "clients", "list"]):
            refused = fulmar(second, *command, text="some-pass-word\n", check=False)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(says, refused.stderr)

        first.kill()
        wait_serving([second])
        self.assertEqual(connack(second, "ann", "first-pass"), 0)
        self.assertEqual(connack(second, "carl", "third-pass"), 0)
        self.assertEqual(connack(second, "bob", "second-pass"), 134, "the password was changed")
        self.assertEqual(connack(second, "dora", "fourth-pass"), 134, "she was removed")
        self.assertEqual(granted(second, "bob", "other-pass", "plant/1"), 1)
        self.assertEqual(granted(second, "bob", "other-pass", "office/1"), 135)
        self.assertEqual(connack(second, "ann", "first-pass", "evil"), 138, "banned")
        self.assertEqual(fulmar(second, "user", "list").stdout, listed)
        actions = self.audit(second)
        self.assertIn(("user.add", "carl", "ok"), actions)
        self.assertIn(("ban.add", "client evil", "ok"), actions)

        # Back at the first one; and a snapshot has them.
        fulmar(second, "ctl", "clients", "unban", "1")
        self.assertIn("stored a snapshot", second.command("snapshot").stdout)
        third = self.nodes(servers, 3)[2]
        third.start()
        eventually("the third stands by", lambda: third.ready()[0] == 503)
        second.kill()
        wait_serving([third])
        self.assertEqual(connack(third, "ann", "first-pass", "evil"), 0, "not banned any more")
        self.assertEqual(fulmar(third, "user", "list").stdout, listed)

        # And back to one broker.
        self.assertEqual(third.stop(), 0)
        third.command("leave")
        third.config.write_text(third.config.read_text().split("[cluster]")[0])
        third.start()
        wait_serving([third])
        self.assertEqual(connack(third, "ann", "first-pass"), 0)
        self.assertIn(("ban.lift", "client evil", "ok"), self.audit(third))

    def test_kill_9_during_a_change_leaves_the_old_state_or_the_new_one(self):
        servers = self.servers(1)
        nodes = self.nodes(servers)
        fulmar(nodes[0], "user", "add", "ann", "--admin", "--config", nodes[0].config, text="first-pass\n")
        node, _ = begin(nodes)
        asked, added = ["ann"], {"ann"}
        for _ in range(KILLS):
            ended, before = threading.Event(), len(added)

            def add(node=node, ended=ended):
                while not ended.is_set():
                    asked.append(f"u{len(asked)}")
                    done = fulmar(node, "ctl", "users", "add", asked[-1], text="a-long-password\n", check=False)
                    if done.returncode == 0:
                        added.add(asked[-1])

            thread = threading.Thread(target=add)
            thread.start()
            # While the next one is added.
            eventually("users", lambda before=before: len(added) > before + 2)
            node.kill()
            ended.set()
            thread.join()
            other, _ = wait_serving(nodes, but=node)
            node.start()
            eventually("it stands by", lambda stands=node: stands.ready()[0] == 503)
            there = {line.split("\t")[0] for line in fulmar(other, "user", "list").stdout.splitlines()}
            self.assertEqual(added - there, set(), "acknowledged, and gone")
            self.assertEqual(there - added - set(asked[-1:]), set(), "half of a change, or none that was asked for")
            added, node = there, other
        print(f"{len(added) - 1} users added, {len(asked) - 1} asked for", flush=True)
        self.assertIsNotNone(serving(nodes))


UPSTREAM = """
[upstream]
url = "mqtt://127.0.0.1:{port}"
name = "gw"
[[upstream.up]]
filter = "sensor/#"
"""


class Gateway(Base):
    """A cluster that is a gateway: what a node has accepted and not forwarded, the next one forwards."""

    MESSAGES = 200

    def test_messages_in_the_outbox_are_forwarded_by_the_node_that_takes_over(self):
        upstream = Broker()
        self.addCleanup(upstream.close)
        copies, ids = collections.Counter(), collections.defaultdict(set)

        def on_message(client, data, message):
            number = int(message.payload)
            # Upstream may be killed before it has stored our acknowledgement.
            copies[number] += not (message.dup and number in copies)
            ids[number].add(dict(message.properties.UserProperty)["id"])

        above = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="above", protocol=paho.MQTTv5)
        above.on_message = on_message
        above.on_connect = lambda client, *rest: client.subscribe("sensor/#", 1)
        above.reconnect_delay_set(1, 1)
        # It is not there yet when the upstream broker is back.
        durable = Properties(PacketTypes.CONNECT)
        durable.SessionExpiryInterval = 3600
        above.connect("127.0.0.1", upstream.ports["mqtt"], clean_start=False, properties=durable)
        above.loop_start()
        self.addCleanup(above.loop_stop)
        self.addCleanup(above.disconnect)

        servers = self.servers(1)
        extra = UPSTREAM.format(port=upstream.ports["mqtt"])
        nodes = self.cluster(servers, 2, development=True, extra=extra)
        node = serving(nodes)
        self.publish(node, range(10))
        eventually("forwarded messages", lambda: len(copies) == 10)

        # What upstream has acknowledged is removed, and that is shared, too.
        eventually("an empty outbox", lambda: self.waiting(node) == 0)

        # The upstream broker is away: the outbox fills.
        upstream.kill()
        self.publish(node, range(10, 10 + self.MESSAGES))
        eventually("a full outbox", lambda: self.waiting(node) == self.MESSAGES)
        node.kill()
        other, _ = wait_serving(nodes, but=node)
        self.assertEqual(self.waiting(other), self.MESSAGES)
        self.publish(other, range(10 + self.MESSAGES, 20 + self.MESSAGES))
        upstream.start()
        eventually("all messages", lambda: len(copies) == 20 + self.MESSAGES)
        eventually("an empty outbox again", lambda: self.waiting(other) == 0)
        node.start()
        eventually("it stands by", lambda: node.ready()[0] == 503)
        other.kill()
        wait_serving([node])
        self.assertEqual(self.waiting(node), 0)
        self.publish(node, [1000])
        eventually("the last message", lambda: 1000 in copies)
        self.assertEqual({number: count for number, count in copies.items() if count > 1}, {})
        self.assertEqual({number: own for number, own in ids.items() if len(own) > 1}, {})

    def waiting(self, node):
        """Messages in the outbox of a node that serves."""
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/metrics") as answer:
            text = answer.read().decode()
        return int(re.search(r"^fulmar_gateway_queued (\d+)$", text, re.M)[1])

    def publish(self, node, numbers):
        made = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="device", protocol=paho.MQTTv5)
        made.connect("127.0.0.1", node.mqtt)
        made.loop_start()
        for number in numbers:
            made.publish("sensor/a", str(number), 1).wait_for_publish(60)
        made.disconnect()
        made.loop_stop()


if __name__ == "__main__":
    unittest.main()
