"""What a cluster's nodes show at /metrics, standing by as well: who serves, how far each is, the lease, NATS. docs/cluster.md
lists all of it, and the alert rules use nothing else."""

import json
import pathlib
import re
import subprocess
import unittest
import urllib.request

import paho.mqtt.publish as publish
import pages
from broker import eventually
from cluster_nodes import Node, begin
from nats_servers import Servers
from test_cluster import setUpModule  # noqa: F401  (a program without the feature)

RULES = pathlib.Path(__file__).resolve().parents[2] / "packaging" / "prometheus" / "fulmar.rules.yml"
NAME = re.compile(r"fulmar_cluster_\w+")


def metrics(node):
    """The samples of a node by name and labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] not in "#")}


class Metrics(unittest.TestCase):
    def setUp(self):
        self.servers = Servers(1)
        self.addCleanup(self.servers.close)
        self.nodes = [Node(self.servers, name, development=True) for name in ("n1", "n2")]
        for node in self.nodes:
            self.addCleanup(node.close)
        self.serves, [self.stands_by] = begin(self.nodes)

    def eventually(self, node, **wanted):
        """Waits until a node's metrics have these values."""
        def done():
            found = metrics(node)
            return all(found.get(f"fulmar_cluster_{name}") == value for name, value in wanted.items())

        try:
            eventually(f"{wanted} at {node.name}", done, 60)
        except AssertionError as error:
            raise AssertionError(f"{error}: {metrics(node)}") from None

    def test_each_node_shows_who_serves_and_how_far_it_is(self):
        self.eventually(self.serves, serves=1, standby_nodes=1, nats_connected=1, behind_records=0, log_replicas=1,
                        take_overs_total=1)
        self.eventually(self.stands_by, serves=0, standby_nodes=1, nats_connected=1, behind_records=0,
                        lease_remaining_seconds=0)
        for node in self.nodes:
            label = f'fulmar_cluster_serving_node{{node="{self.serves.name}"}}'
            eventually("the node that serves", lambda node=node, label=label: metrics(node).get(label) == 1, 60)
        found = metrics(self.serves)
        self.assertGreater(found["fulmar_cluster_lease_remaining_seconds"], 0)
        self.assertGreater(found["fulmar_cluster_lease_renewals_total"], 0)
        self.assertGreaterEqual(found["fulmar_cluster_snapshot_age_seconds"], 0)
        shown = {NAME.match(name)[0] for node in self.nodes for name in metrics(node) if NAME.match(name)}
        self.assertEqual(set(NAME.findall(pages.page("docs/cluster.md"))), shown)
        self.assertEqual(set(NAME.findall(RULES.read_text())) - shown, set())

    def test_records_of_the_log_are_counted(self):
        self.eventually(self.stands_by, behind_records=0)
        before = metrics(self.serves)
        publish.single("a/b", "x", qos=1, retain=True, hostname="127.0.0.1", port=self.serves.mqtt)
        found = metrics(self.serves)
        self.assertGreater(found["fulmar_cluster_appends_total"], before["fulmar_cluster_appends_total"])
        self.assertGreater(found["fulmar_cluster_append_seconds_total"], before["fulmar_cluster_append_seconds_total"])
        self.assertGreater(found["fulmar_cluster_last_append_seconds"], 0)
        position = "fulmar_cluster_position_records"
        eventually("the other node's position", lambda: metrics(self.stands_by).get(position, 0) >= found[position], 60)

    def test_the_broker_api_shows_the_nodes(self):
        def nodes():
            socket = self.serves.data / "data" / "admin.sock"
            url = "http://localhost/api/admin/v1/overview"
            done = subprocess.run(["curl", "-sS", "--fail-with-body", "--unix-socket", socket, url], capture_output=True, timeout=30)
            self.assertEqual(done.returncode, 0, done)
            cluster = json.loads(done.stdout)["server"]["cluster"]
            self.assertEqual(cluster["node"], self.serves.name)
            return {node["name"]: node["role"] for node in cluster["nodes"]}

        wanted = {self.serves.name: "serving", self.stands_by.name: "standing by"}
        eventually("both nodes", lambda: nodes() == wanted, 60, every_s=0.5)
        self.stands_by.kill()
        eventually("a node that is gone", lambda: nodes() == {**wanted, self.stands_by.name: "gone"}, 60, every_s=0.5)

    def test_without_nats_nobody_serves_in_the_metrics(self):
        self.eventually(self.stands_by, nats_connected=1)
        self.servers.kill(0)
        self.eventually(self.stands_by, nats_connected=0)
        eventually("no node", lambda: metrics(self.stands_by).get('fulmar_cluster_serving_node{node=""}') == 1, 60)


if __name__ == "__main__":
    unittest.main()
