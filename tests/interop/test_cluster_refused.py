"""What a cluster's nodes refuse, or wait out, each with what to do next: NATS servers that cannot carry a cluster, and
credentials, certificates, streams and snapshots that are wrong. On real servers, except for a version that is too old.

test_cluster.py has the rest: servers without fsync, a name or a log that is another's, damaged records."""

import base64
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import types
import unittest
import zlib
from unittest import mock

import paho.mqtt.client as paho
import ports
from broker import PATIENCE_S, binary, eventually
from cluster_nodes import Node, logs, wait_serving
from nats_accounts import Accounts
from nats_servers import Servers
from slow_link import SlowLink


class Base(unittest.TestCase):
    def servers(self, count=1, **settings):
        servers = Servers(count, **settings)
        self.addCleanup(servers.close)
        return servers

    def node(self, servers, name, extra="", **settings):
        node = Node(servers, name, extra, development=True, **settings)
        self.addCleanup(node.close)
        return node

    def cluster(self, servers, *names):
        nodes = [self.node(servers, name) for name in names]
        nodes[0].command("init")
        nodes[0].start()
        wait_serving(nodes)
        return nodes

    def refused(self, node, *parts):
        """The node ends, and its last words have these parts."""
        node.start()
        code = node.process.wait(30)
        text = node.log.read_text()
        self.assertNotEqual(code, 0, text)
        for part in parts:
            self.assertIn(part, text)

    def eventually(self, what, node, done):
        """As `eventually`; a failure has the end of the node's log."""
        try:
            eventually(f"{what}, node {node.name}", done, 60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{logs([node])}") from None

    def eventually_logs(self, node, text):
        self.eventually(f"{text!r} in the log", node, lambda: text in node.log.read_text())

    def publish(self, node, topics, size=10):
        """Publishes retained messages at QoS 1; returns the client, and the topics that are acknowledged so far."""
        acknowledged, by_id, identifiers = set(), {}, set()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)

        # Perhaps before publish() has returned the identifier; and it must not wait, because it has a lock that publish() needs.
        def on_publish(client, data, mid, reason, properties):
            if not reason.is_failure:
                identifiers.add(mid)
                acknowledged.update(topic for topic in [by_id.get(mid)] if topic)

        client.on_publish = on_publish
        client.connect("127.0.0.1", node.mqtt)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        for topic in topics:
            mid = client.publish(topic, topic.ljust(size), 1, retain=True).mid
            by_id[mid] = topic
            if mid in identifiers:
                acknowledged.add(topic)
        return client, acknowledged

    def publish_all(self, node, topics, size=10):
        client, acknowledged = self.publish(node, topics, size)
        eventually("acknowledgements", lambda: acknowledged == set(topics), 60)
        client.disconnect()

    def retained(self, node, topics):
        """Waits for the retained messages of these topics."""
        got = set()
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.on_message = lambda client, data, message: got.add(message.topic)
        client.on_connect = lambda client, *rest: client.subscribe("#", 1)
        client.connect("127.0.0.1", node.mqtt)
        client.loop_start()
        try:
            eventually("the retained messages", lambda: got >= set(topics), 60)
        finally:
            client.disconnect()
            client.loop_stop()


class Elections(Base):
    def test_init_waits_while_the_servers_elect(self):
        servers = self.servers(3)
        node = self.node(servers, "n1")
        # No majority: nothing of JetStream is answered.
        for index in (1, 2):
            servers.pause(index)
        command = [binary(), "cluster", "init", "--config", node.config]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as init:
            timer = threading.Timer(PATIENCE_S, init.kill)
            timer.start()
            said = ""
            for line in init.stderr:
                said += line
                if "may be electing" in line:
                    for index in (1, 2):
                        servers.go_on(index)
            timer.cancel()
            self.assertEqual(init.wait(), 0, said)
            self.assertIn("may be electing", said)


class OldServer:
    """The beginning of a connection to nats-server 2.14.6."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        info = {"server_id": "NDTP", "server_name": "old", "version": "2.14.6", "proto": 1, "go": "go1.26", "host":
                "127.0.0.1", "port": self.port, "headers": True, "max_payload": 1 << 20, "jetstream": True}
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            # A program that ends with something unread resets its connection; the next one is served all the same.
            with connection, contextlib.suppress(OSError):
                connection.sendall(f"INFO {json.dumps(info)}\r\n".encode())
                for line in connection.makefile("rb"):
                    if line.startswith(b"PING"):
                        connection.sendall(b"PONG\r\n")


class Unusable(Base):
    def test_a_server_without_jetstream(self):
        self.refused(self.node(self.servers(jetstream=False), "a"), "n0 has no JetStream", "enable it")

    def test_a_server_that_is_too_old(self):
        # FULMAR_OLD_NATS_SERVER: a real one.
        real = os.environ.get("FULMAR_OLD_NATS_SERVER")
        if real:
            with mock.patch("nats_servers.program", lambda: real):
                servers = self.servers()
        else:
            old = OldServer()
            self.addCleanup(old.listener.close)
            servers = types.SimpleNamespace(addresses=lambda: [f"nats://127.0.0.1:{old.port}"], monitoring=list)
        node = self.node(servers, "a")
        self.refused(node, "has version 2.14.", "2.15.0 or later is needed: upgrade it")
        self.assertIn("upgrade it", node.command("init", check=False).stderr)

    def test_streams_of_another_program_or_a_newer_fulmar(self):
        servers = self.servers()
        stream = {"name": "FULMAR_LOG", "subjects": ["fulmar.log"], "storage": "file"}
        servers.request("$JS.API.STREAM.CREATE.FULMAR_LOG", stream)
        node = self.node(servers, "a")
        self.assertIn("another program has made it", node.command("init", check=False).stderr)
        self.refused(node, "another program has made it; use a NATS account of its own")
        servers.request("$JS.API.STREAM.DELETE.FULMAR_LOG", {})
        node.command("init")
        metadata = servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["config"]["metadata"]
        servers.change_stream(metadata={**metadata, "fulmar-format": "2"})
        self.refused(node, "another version has made it; upgrade this node")


class Credentials(Base):
    def test_a_password_is_no_credentials_file_and_stays_out_of_the_log(self):
        node = self.node(self.servers(extra="authorization { user: fulmar, password: a-secret }"), "a")
        node.config.write_text(node.config.read_text().replace("nats://", "nats://fulmar:a-secret@"))
        self.refused(node, "nats://127.0.0.1", "refuse the credentials", "[cluster] credentials_file")
        self.assertNotIn("a-secret", node.log.read_text())

    def test_credentials_files(self):
        accounts, others = Accounts(), Accounts()
        servers = self.servers(extra=accounts.lines)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "fulmar.creds")
            node = self.node(servers, "a", f"credentials_file = '{file}'")
            self.refused(node, "credentials_file", str(file))
            file.write_text("no such thing")
            self.refused(node, "credentials_file", "run `chmod 600")
            file.chmod(0o600)
            self.refused(node, "is no credentials file of NATS", "nsc generate creds")
            file.write_text(others.credentials())
            self.refused(node, "refuse the credentials")
            file.write_text(accounts.credentials())
            text = node.config.read_text()
            node.config.write_text(text.replace('allow_anonymous = "loopback"', 'allow_anonymous = "never"'))
            node.command("init")
            node.start()
            wait_serving([node])

    def test_credentials_that_nats_does_not_require(self):
        node = self.node(self.servers(), "a")
        plain = node.config.read_text()
        never = plain.replace('allow_anonymous = "loopback"', 'allow_anonymous = "never"')
        node.config.write_text(never)
        self.refused(node, "without credentials, anyone who reaches this NATS server", "credentials_file")
        far = plain.replace("nats://127.0.0.1", "nats://n1.example")
        node.config.write_text(far)
        self.refused(node, "n1.example: without credentials", 'allow_anonymous = "always"')
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "fulmar.creds")
            file.write_text(Accounts().credentials())
            file.chmod(0o600)
            node.config.write_text(never.replace("[cluster]\n", f'[cluster]\ncredentials_file = "{file}"\n'))
            self.refused(node, "the NATS server n0 requires no credentials")
            self.assertIn("requires no credentials", node.command("init", check=False).stderr)

    def test_tls(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            self.issue(folder / "ca", "localhost", "--san", "127.0.0.1")
            self.issue(folder / "ca", "a", "--client")
            self.issue(folder / "other", "a", "--client")
            tls = f'cert_file: "{folder}/ca/localhost.pem", key_file: "{folder}/ca/localhost.key", ' \
                  f'ca_file: "{folder}/ca/ca.pem", verify: true'
            servers = self.servers(extra=f"tls {{ {tls} }}")
            node = self.node(servers, "a")
            plain = node.config.read_text().replace("nats://", "tls://")

            def configure(ca, own):
                keys = f'ca_file = "{folder}/{ca}/ca.pem"\n'
                keys += f'cert = "{folder}/{own}/a.pem"\nkey = "{folder}/{own}/a.key"\n' if own else ""
                node.config.write_text(plain.replace("[cluster]\n", "[cluster]\n" + keys))

            for ca, own in (("other", "ca"), ("ca", None), ("ca", "other")):
                configure(ca, own)
                self.refused(node, "TLS with the NATS servers", "[cluster] ca_file", "cert and key")
                node.log.unlink()
            configure("ca", "ca")
            node.command("init")
            node.start()
            wait_serving([node])

    def issue(self, folder, name, *more):
        subprocess.run([binary(), "cert", "issue", name, *more, "--dir", folder, "--out", folder], check=True,
                       capture_output=True, timeout=60)


class Log(Base):
    def test_a_full_log_acknowledges_nothing_and_goes_on_when_there_is_room(self):
        servers = self.servers()
        nodes = self.cluster(servers, "a", "b")
        used = servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["bytes"]
        servers.change_stream(max_bytes=used + 1_000_000)
        topics = [f"full/{number}" for number in range(40)]
        _, acknowledged = self.publish(nodes[0], topics, 100_000)
        self.eventually_logs(nodes[0], "the stream FULMAR_LOG is full")
        self.assertIn("raise its limits with `nats stream edit FULMAR_LOG`", nodes[0].log.read_text())
        # Acknowledgements of what was stored before may still be on their way.
        stored = None
        while stored != acknowledged:
            stored = set(acknowledged)
            time.sleep(1)
        self.assertLess(len(stored), 10)
        # What is published now is not acknowledged, nor what waits.
        _, later = self.publish(nodes[0], ["full/later"])
        self.assertEqual((acknowledged, later), (stored, set()))
        servers.change_stream(max_bytes=-1)
        self.eventually_logs(nodes[0], "writing resumed")
        self.publish_all(nodes[0], ["room"])
        nodes[1].start()
        eventually("a node that stands by", lambda: nodes[1].ready()[0] == 503)
        nodes[0].kill()
        wait_serving([nodes[1]])
        self.retained(nodes[1], acknowledged | {"room"})

    def test_a_node_that_was_away_begins_with_a_snapshot_and_the_log_becomes_short_by_itself(self):
        servers = self.servers()
        away, other = self.cluster(servers, "away", "other")
        self.publish_all(away, ["before"])
        other.start()
        eventually("a node that stands by", lambda: other.ready()[0] == 503)
        self.assertEqual(away.stop(), 0)
        wait_serving([other])
        # The node that serves stores no snapshots.
        with mock.patch.dict(os.environ, FULMAR_TEST_SNAPSHOT_AFTER_BYTES="200000"):
            third = self.node(servers, "third").start()
        topics = [f"more/{number}" for number in range(60)]
        before = self.first(servers)
        for snapshots, start in enumerate((0, 20, 40)):
            # Each in a record of its own.
            for topic in topics[start:start + 20]:
                self.publish_all(other, [topic], 20_000)
            stored = lambda: third.log.read_text().count("snapshot stored") >= min(snapshots + 1, 2)
            self.eventually("a snapshot", third, stored)
        eventually("a shorter log", lambda: self.first(servers) > before)
        away.start()
        self.eventually_logs(away, "this node was away for long; it begins with a snapshot")
        eventually("it stands by", lambda: away.ready()[0] == 503)
        self.assertEqual((third.stop(), other.stop()), (0, 0))
        wait_serving([away])
        self.retained(away, ["before", *topics])

    def test_a_node_that_stores_a_snapshot_gives_it_up_when_it_is_needed(self):
        servers = self.servers()
        first, = self.cluster(servers, "first")
        # A snapshot of all takes more than half a minute.
        link = SlowLink(servers.ports[0], 500_000)
        self.addCleanup(link.close)
        slow = f"nats://127.0.0.1:{link.port}"
        behind = types.SimpleNamespace(addresses=lambda: [slow], monitoring=servers.monitoring)
        topics = [f"kept/{number}" for number in range(200)]
        self.publish_all(first, topics, 100_000)
        uploaded = lambda: servers.request("$JS.API.STREAM.INFO.OBJ_FULMAR_SNAPSHOTS", {})["state"]["messages"]
        before = uploaded()
        with mock.patch.dict(os.environ, FULMAR_TEST_SNAPSHOT_AFTER_BYTES="200000"):
            second = self.node(behind, "second").start()
        self.eventually("part of a snapshot", second, lambda: uploaded() > before + 2)
        first.kill()
        # The lease ends after four seconds; no other node stands by. What follows is true only if that was in time.
        wait_serving([second])
        text = second.log.read_text()
        self.assertIn("snapshot given up: this node takes over", text)
        self.assertNotIn("snapshot stored", text)
        self.assertFalse((second.data / "data" / "cluster-tmp").exists())
        self.assertLess(uploaded(), before + 100)
        self.retained(second, topics)

    def record(self, servers, number):
        answer = servers.request("$JS.API.STREAM.MSG.GET.FULMAR_LOG", {"seq": number})
        return base64.b64decode(answer["message"]["data"])

    def state(self, servers):
        return servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]

    def test_a_record_that_does_not_continue_the_one_before(self):
        servers = self.servers()
        node, other = self.cluster(servers, "a", "b")
        self.publish_all(node, ["kept/1"])
        node.kill()
        last = self.state(servers)["last_seq"]
        # The last record again, with the next number: its own checksum is right, and that of the record before is not.
        head = self.record(servers, last)[:-4]
        record = head[:9] + (last + 1).to_bytes(8, "little") + head[17:]
        servers.append(record + zlib.crc32(record).to_bytes(4, "little"))
        self.refused(other, f"record {last + 1} of the cluster's log cannot be used", "missing or mixed up",
                     "fulmar cluster restore")

    def test_a_record_that_is_missing_in_the_middle(self):
        servers = self.servers()
        node, other = self.cluster(servers, "a", "b")
        for topic in ("kept/1", "kept/2", "kept/3"):
            self.publish_all(node, [topic])
        servers.request("$JS.API.STREAM.MSG.DELETE.FULMAR_LOG", {"seq": 3})
        self.refused(other, "record 3 is missing", "fulmar cluster restore")

    def test_a_record_of_a_newer_version_is_no_damage(self):
        servers = self.servers()
        node, old = self.cluster(servers, "a", "old")
        node.kill()
        # A record begins with its version, and ends with its checksum.
        record = b"\x03 and what this program does not know"
        servers.append(record + zlib.crc32(record).to_bytes(4, "little"))
        self.refused(old, "was written by a newer node", "has version 3", "upgrade it")
        self.assertNotIn("cannot be used", old.log.read_text())
        restore = old.command("restore", "--discard", check=False)
        self.assertNotEqual(restore.returncode, 0)
        self.assertIn("upgrade it", restore.stderr)

    def first(self, servers):
        return servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["first_seq"]

    def test_a_snapshot_that_is_older_than_the_log(self):
        servers = self.servers()
        node, new = self.cluster(servers, "a", "new")
        self.publish_all(node, ["kept/1", "kept/2"])
        last = servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["last_seq"]
        servers.request("$JS.API.STREAM.PURGE.FULMAR_LOG", {"seq": last})
        self.refused(new, "the newest snapshot ends with record 0, and the log begins with record", "Stop a node",
                     "fulmar cluster snapshot")
        self.assertIn("stop it", node.command("snapshot", check=False).stderr)
        self.assertEqual(node.stop(), 0)
        self.assertIn("stored a snapshot", node.command("snapshot").stdout)
        new.start()
        wait_serving([new])
        self.retained(new, ["kept/1", "kept/2"])


if __name__ == "__main__":
    unittest.main()
