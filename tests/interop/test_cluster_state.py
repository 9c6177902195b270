"""What nodes of a cluster share besides sessions and messages: users and their rules, bans and the log of changes. They
are changed at the node that serves with `fulmar user`, `fulmar ctl` and mosquitto's own `mosquitto_ctrl`; after kill -9
of it, the next node has them.

FULMAR_CLUSTER_CHANGES makes it long."""

import json
import os
import subprocess
import threading
import unittest

import paho.mqtt.client as paho
from broker import binary, eventually
from cluster_nodes import serving, wait_serving
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
        nodes[0].command("init")
        for node in nodes:
            node.start()
        first, _ = wait_serving(nodes)
        [second] = [node for node in nodes if node is not first]
        eventually("the other stands by", lambda: second.ready()[0] == 503)
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
        nodes[0].command("init")
        for node in nodes:
            node.start()
        node, _ = wait_serving(nodes)
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


if __name__ == "__main__":
    unittest.main()
