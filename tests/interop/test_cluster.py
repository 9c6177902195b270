"""A cluster of nodes on real NATS servers: the walk of docs/cluster.md, a node that hands over, and what is refused at the
start. test_cluster_kill.py has what is left when nodes and servers die."""

import base64
import pathlib
import re
import socket
import subprocess
import tempfile
import textwrap
import threading
import time
import unittest
import zlib

import paho.mqtt.client as paho
import pages
import ports
from broker import binary, eventually
from cluster_nodes import Node, begin, serving, wait_serving
from nats_servers import Servers, program


def setUpModule():
    done = subprocess.run([binary(), "cluster", "--help"], capture_output=True, text=True, timeout=60)
    if "built without" in done.stderr:
        raise unittest.SkipTest("the program was built without the feature `cluster`")


class Base(unittest.TestCase):
    def servers(self, count=3, **settings):
        servers = Servers(count, **settings)
        self.addCleanup(servers.close)
        return servers

    def node(self, servers, name, **settings):
        node = Node(servers, name, **settings)
        self.addCleanup(node.close)
        return node

    def cluster(self, servers, count=3, **settings):
        """Nodes of a new cluster, of which one serves."""
        nodes = [self.node(servers, f"node-{index}", **settings) for index in range(count)]
        begin(nodes)
        return nodes


class Drain(Base):
    def test_a_drained_node_hands_over(self):
        servers = self.servers(1)
        nodes = self.cluster(servers, 2, development=True)
        before = serving(nodes)
        self.assertIn(f"node      {before.name}", before.command("status").stdout)
        said = nodes[0].command("drain", before.name).stdout
        after, _ = wait_serving(nodes, but=before)
        self.assertIn(f"{after.name} at 127.0.0.1:{after.mqtt} serves", said)
        says = f"{after.name} at 127.0.0.1:{after.mqtt} serves"
        eventually("the drained node stands by", lambda: before.ready()[0] == 503 and says in before.ready()[1])
        self.assertEqual(after.stop(), 0)
        wait_serving(nodes, but=after)


    def test_a_request_to_another_process_does_not_drain(self):
        servers = self.servers(1)
        nodes = self.cluster(servers, 2, development=True)
        before = serving(nodes)
        [other] = [node for node in nodes if node is not before]
        # As though that node had been asked and had died before it looked.
        subject = f"drain.{other.name}"
        servers.request(f"$KV.FULMAR_CONTROL.{subject}", b"17")
        before.kill()
        wait_serving([other])
        last = {"last_by_subj": f"$KV.FULMAR_CONTROL.{subject}"}
        found = lambda: servers.request("$JS.API.STREAM.MSG.GET.KV_FULMAR_CONTROL", last)["message"]
        eventually("a request that is taken out", lambda: "KV-Operation" in base64.b64decode(found()["hdrs"]).decode()
                   if "hdrs" in found() else False)
        self.assertEqual(other.ready()[0], 200)
        self.assertNotIn("drained", other.log.read_text())


class Page(unittest.TestCase):
    """docs/cluster.md: the walk on one machine, typed as it stands there but for the ports."""

    # How the lines are found; "fulmar serve", too.
    TYPED = ["fulmar cluster init", "fulmar cluster status", "fulmar cluster drain", "fulmar cluster snapshot",
             "fulmar sub mqtt://"]

    def test_the_walk_on_one_machine(self):
        text = pages.page("docs/cluster.md")
        blocks = [textwrap.dedent(block) for block in re.findall(r"(?:(?<=\n)    .*\n)+", text)]
        [nats] = [block for block in blocks if block.startswith("listen: ")]
        [node] = [block for block in blocks if block.startswith("[server]")]
        own = dict(zip(["4222", "8222", "1883", "9001"], map(str, ports.take(4))))
        others = dict(zip(["1883", "9001"], map(str, ports.take(2))))
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "nats.conf").write_text(renumbered(nats, own))
            (folder / "n1.toml").write_text(renumbered(node, own))
            (folder / "n2.toml").write_text(renumbered(node.replace("n1", "n2"), {**own, **others}))
            server = subprocess.Popen([program(), "-c", "nats.conf"], cwd=folder, stderr=subprocess.DEVNULL)
            self.addCleanup(server.wait, 30)
            self.addCleanup(server.kill)
            [init] = pages.lines("docs/cluster.md", self.TYPED[0])
            said = []

            def made() -> bool:
                done = self.typed(init, folder)
                said[:] = [server.poll(), done.stderr]
                return done.returncode == 0

            try:
                eventually("a cluster", made, every_s=0.2)
            except AssertionError as late:
                raise AssertionError(f"{late}: the NATS server's exit code and what init says: {said}") from None
            started = [self.start(line, folder) for line in pages.lines("docs/cluster.md", "fulmar serve")]
            first, second = started
            self.assertRegex(first.stdout.readline(), "^standby ")
            self.assertRegex(second.stdout.readline(), "^standby ")
            # Either may be the one that serves.
            for line in pages.lines("docs/cluster.md", self.TYPED[1]):
                eventually("status", lambda: "serving   n" in self.typed(line, folder).stdout)
            status = self.typed(line, folder).stdout
            serving, standing_by = (first, second) if "serving   n1" in status else (second, first)
            self.assertRegex(serving.stdout.readline(), "^ready mqtt=")
            [line] = pages.lines("docs/cluster.md", self.TYPED[4])
            subscribe = renumbered(line, {"1883": own["1883"], "1884": others["1883"]}).replace("'", "")
            subscriber = self.start(subscribe, folder)
            [line] = pages.lines("docs/cluster.md", self.TYPED[3])
            self.assertIn("stored a snapshot", self.typed(line, folder).stdout)
            [line] = pages.lines("docs/cluster.md", self.TYPED[2])
            done = self.typed(line, folder).stdout
            self.assertIn("n2 at" if serving is first else "n1 does not serve", done)
            if serving is first:
                self.assertRegex(serving.stdout.readline(), "^standby ")
                self.assertRegex(standing_by.stdout.readline(), "^ready ")
                serving, standing_by = standing_by, serving
            serving.kill()
            self.assertRegex(standing_by.stdout.readline(), "^ready mqtt=")
            got = []
            reader = threading.Thread(target=lambda: got.append(subscriber.stdout.readline()))
            reader.start()
            address = subscribe.split()[2]

            def received():
                # The subscriber needs a moment to find the node that serves now.
                self.typed(f"fulmar pub {address} -t plant/temp -m 21.5 -q 1", folder)
                return got

            eventually("a message at the subscriber", received, 30)
            self.assertEqual(got, ["plant/temp 21.5\n"])

    def typed(self, line, folder):
        words = [binary(), *line.split()[1:]]
        return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)

    def start(self, line, folder):
        process = subprocess.Popen([binary(), *line.split()[1:]], cwd=folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait, 30)
        self.addCleanup(process.kill)
        return process


def renumbered(text, ports_by_default):
    """With other ports than the page's."""
    for default, port in ports_by_default.items():
        text = text.replace(f":{default}", f":{port}")
    return text


class Refused(Base):
    def refused(self, node, *parts):
        node.start()
        code = node.process.wait(30)
        text = node.log.read_text()
        self.assertNotEqual(code, 0, text)
        for part in parts:
            self.assertIn(part, text)

    def test_servers_that_lose_messages_in_a_power_cut(self):
        servers = self.servers(1, sync="2m")
        self.refused(self.node(servers, "a", development=True), "sync_interval: always", "n0")

    def test_a_node_starts_although_a_server_is_down(self):
        servers = self.servers(3)
        node = self.node(servers, "a")
        node.command("init")
        servers.kill(1)
        node.start()
        wait_serving([node])

    def test_a_node_before_there_is_a_cluster_of_another_cluster_or_of_a_name_that_is_taken(self):
        servers, others = self.servers(1), self.servers(1)
        node = self.node(servers, "a", development=True)
        self.refused(node, "fulmar cluster init")
        node.command("init")
        self.assertIn("cluster", node.command("init", check=False).stderr)
        node.start()
        wait_serving([node])
        twin = self.node(servers, "a", development=True)
        self.refused(twin, "another node of the cluster is named")
        one = self.node(servers, "b")
        self.refused(one, "--replicas 3", "development")
        self.assertEqual(node.stop(), 0)
        other = self.node(others, "c", development=True)
        other.command("init")
        node.config.write_text(node.config.read_text().replace(servers.addresses()[0], others.addresses()[0])
                               .replace(servers.monitoring()[0], others.monitoring()[0]))
        self.refused(node, "this data folder belongs to cluster")

    def test_clients_wait_for_nats_and_are_not_refused(self):
        servers = self.servers(1)
        # A node alone would refuse after a second.
        node = self.node(servers, "a", development=True, extra="[storage]\nstall_timeout_s = 1")
        node.command("init")
        node.start()
        wait_serving([node])
        reasons = []
        made = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        made.on_publish = lambda client, data, mid, reason, properties: reasons.append(reason.value)
        made.connect("127.0.0.1", node.mqtt)
        made.loop_start()
        servers.kill(0)
        made.publish("kept", "1", 1, retain=True)
        overdue = time.monotonic() + 1.5
        eventually("storage that fails", lambda: node.ready()[0] == 503 and time.monotonic() > overdue)
        servers.run(0)
        eventually("an answer", lambda: reasons, 30)
        made.disconnect()
        made.loop_stop()
        # Accepted, with nobody to receive it.
        self.assertEqual(reasons, [0x10])

    def test_an_init_that_failed_can_be_repeated(self):
        servers = self.servers(1)
        node = self.node(servers, "a", development=True)
        clustered = node.config.read_text()
        node.config.write_text(clustered.split("[cluster]")[0])
        node.start()
        wait_serving([node])
        self.retain(node, "kept", "1")
        self.assertEqual(node.stop(), 0)
        # Three replicas have no place on one server.
        node.config.write_text(clustered.replace("development = true", "development = false"))
        self.assertNotEqual(node.command("init", check=False).returncode, 0)
        node.config.write_text(clustered)
        node.command("init")
        node.start()
        wait_serving([node])
        self.assertEqual(self.retained(node, "kept"), "1")

    def test_a_server_id_of_another_node(self):
        servers = self.servers(1)
        extra = 'quic_server_id = "0x0102030405060708"'
        node, other = (self.node(servers, name, development=True, extra=extra) for name in "ab")
        node.command("init")
        node.start()
        wait_serving([node])
        self.refused(other, 'the node "a"', "same server ID 0x0102030405060708", "[cluster] quic_server_id")
        # Of a node that has ended it may be.
        node.kill()
        other.start()
        wait_serving([other])

    def test_what_another_program_publishes_to_the_log_is_passed_over(self):
        servers = self.servers(1)
        first, second = nodes = [self.node(servers, name, development=True) for name in "ab"]
        first.command("init")
        first.start()
        wait_serving(nodes)
        second.start()
        eventually("the other node stands by", lambda: second.ready()[0] == 503)
        kept = {}
        for number in range(20):
            last = servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["last_seq"]
            record = base64.b64decode(
                servers.request("$JS.API.STREAM.MSG.GET.FULMAR_LOG", {"seq": last})["message"]["data"])
            # With the next number: its own checksum is right, that of the record before is not.
            forged = record[:9] + (last + 1).to_bytes(8, "little") + record[17:-4]
            forged += zlib.crc32(forged).to_bytes(4, "little")
            self.stranger(servers, [b"hello", record, forged, record[:-1], b""][number % 5])
            kept[f"kept/{number}"] = str(number)
            self.retain(first, f"kept/{number}", str(number))
        for node in nodes:
            self.assertIsNone(node.process.poll(), node.log.read_text())
        self.assertIn("another program writes to the cluster's log", first.log.read_text())
        self.assertEqual(first.log.read_text().count("claimed the log"), 1, "it serves all the time")
        # At the end of the log, where the next claim comes.
        first.kill()
        self.stranger(servers, b"hello")
        wait_serving([second])
        self.assertEqual({topic: self.retained(second, topic) for topic in kept}, kept)
        # A node that comes back reads all of it.
        first.start()
        eventually("the first node stands by", lambda: first.ready()[0] == 503)
        second.kill()
        wait_serving([first])
        self.assertEqual({topic: self.retained(first, topic) for topic in kept}, kept)

    def stranger(self, servers, payload):
        with socket.create_connection(("127.0.0.1", servers.ports[0]), 5) as stranger:
            head = f"CONNECT {{}}\r\nPUB fulmar.log {len(payload)}\r\n".encode()
            stranger.sendall(head + payload + b"\r\nPING\r\n")
            answer = b""
            while b"PONG" not in answer:
                answer += stranger.recv(4096)

    def test_a_damaged_log_stops_all_nodes_and_is_restored(self):
        servers = self.servers(1)
        nodes = [self.node(servers, name, development=True) for name in "ab"]
        nodes[0].command("init")
        nodes[0].start()
        wait_serving(nodes)
        self.retain(nodes[0], "kept", "1")
        servers.append(b"hello")
        # The node that serves notices it with its next record; one that stands by, at once.
        self.refused(nodes[1], "of the cluster's log cannot be used", "fulmar cluster restore")
        self.assertIn("serves", nodes[1].command("restore", check=False).stderr)
        nodes[0].kill()
        self.refused(nodes[0], "of the cluster's log cannot be used")
        self.assertIn("--discard", nodes[0].command("restore").stdout)
        self.assertIn("Start this node", nodes[0].command("restore", "--discard").stdout)
        nodes[0].start()
        wait_serving(nodes)
        self.assertEqual(self.retained(nodes[0], "kept"), "1")
        self.refused(nodes[1], "belongs to cluster")

    def test_from_one_broker_to_a_cluster_and_back(self):
        servers = self.servers(1)
        node = self.node(servers, "a", development=True)
        clustered = node.config.read_text()
        alone = clustered.split("[cluster]")[0]
        node.config.write_text(alone)
        node.start()
        wait_serving([node])
        self.retain(node, "kept", "1")
        self.assertEqual(node.stop(), 0)
        node.config.write_text(clustered)
        self.refused(node, "fulmar cluster init")
        node.command("init")
        node.start()
        wait_serving([node])
        self.assertEqual(self.retained(node, "kept"), "1")
        self.retain(node, "kept", "2")
        self.assertIn("stored a snapshot", node.command("snapshot").stdout)
        # A node that is new begins with the snapshot.
        second = self.node(servers, "b", development=True).start()
        eventually("the second node stands by", lambda: second.ready()[0] == 503)
        self.assertIn("stop all nodes", node.command("leave", check=False).stderr)
        node.kill()
        wait_serving([second])
        self.assertEqual(self.retained(second, "kept"), "2")
        self.assertEqual(second.stop(), 0)
        node.command("leave")
        node.config.write_text(alone)
        node.start()
        wait_serving([node])
        self.assertEqual(self.retained(node, "kept"), "2")

    def retain(self, node, topic, text):
        made = paho.Client(paho.CallbackAPIVersion.VERSION2)
        made.connect("127.0.0.1", node.mqtt)
        made.loop_start()
        made.publish(topic, text, 1, retain=True).wait_for_publish(30)
        made.disconnect()
        made.loop_stop()

    def retained(self, node, topic):
        got = []
        made = paho.Client(paho.CallbackAPIVersion.VERSION2)
        made.on_message = lambda client, data, message: got.append(message.payload.decode())
        made.connect("127.0.0.1", node.mqtt)
        made.subscribe(topic, 1)
        made.loop_start()
        eventually(f"the retained message of {topic}", lambda: got, 30)
        made.disconnect()
        made.loop_stop()
        return got[0]


if __name__ == "__main__":
    unittest.main()
