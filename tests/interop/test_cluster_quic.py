"""A node's QUIC connection IDs name it in QUIC-LB's plain form, as a load balancer reads them; aioquic is the client, and
what is checked is read from its packets. A client that moves reaches its worker, and packets of another node's
connections get no answer."""

import asyncio
import contextlib
import re
import socket
import unittest
import urllib.request

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration
from broker import eventually
from cluster_nodes import Node, wait_serving
from nats_servers import Servers
from test_clients import PATIENCE_S, Stream, text
from test_cluster import setUpModule  # noqa: F401  (a program without the feature)

WORKERS, CLIENTS = 4, 8
# Three bits for the configuration, 0; five for the number of octets that follow.
CONFIGURATION = 17


def new_socket():
    """One like aioquic's, with a port of its own."""
    made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    made.bind(("::", 0))
    return made


class Watching(Stream):
    """Notes the server's connection IDs: the source of each packet with a long header."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.ids = set()

    def datagram_received(self, data, address):
        if data[0] & 0x80:
            source = 6 + data[5]
            self.ids.add(bytes(data[source + 1:source + 1 + data[source]]))
        super().datagram_received(data, address)


class Quic(unittest.TestCase):
    def setUp(self):
        servers = Servers(1)
        self.addCleanup(servers.close)
        self.node = Node(servers, "n1", development=True, prefix=(
            "env", 'FULMAR_LISTENERS__QUIC=["127.0.0.1:0"]', f"FULMAR_SERVER__WORKERS={WORKERS}"))
        self.addCleanup(self.node.close)
        self.node.command("init")
        wait_serving([self.node.start()])
        self.port = int(self.wait_for(r"^ready .*quic=127\.0\.0\.1:(\d+)", self.node.log.read_text))
        status = lambda: self.node.command("status").stdout
        self.server_id = bytes.fromhex(self.wait_for(r"node +n1 .*QUIC 0x([0-9a-f]{16})", status))

    def wait_for(self, pattern, text):
        """The group of a pattern in a text that is read again until it is there."""
        found = []
        eventually(pattern, lambda: found.extend(re.findall(pattern, text(), re.MULTILINE)) or found)
        return found[0]

    async def clients(self, stack):
        """Several, of as many workers as chance has it."""
        configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"])
        configuration.load_verify_locations(str(self.node.data / "data" / "ca" / "ca.pem"))
        clients = []
        for number in range(CLIENTS):
            dial = connect("localhost", self.port, configuration=configuration, create_protocol=Watching)
            client = await stack.enter_async_context(dial)
            body = text(b"MQTT") + bytes([4, 2, 0, 60]) + text(b"c%d" % number)
            client.send(0, bytes([0x10, len(body)]) + body)
            await client.wait_for(0, bytes([0x20, 2, 0, 0]))
            clients.append(client)
        return clients

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.node.http}/metrics", timeout=10) as page:
            return float(re.search(rf"^{name} (\S+)$", page.read().decode(), re.MULTILINE)[1])

    async def move(self):
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            clients = await self.clients(stack)
            workers = set()
            for client in clients:
                for cid in client.ids:
                    self.assertEqual((len(cid), cid[0], cid[1:9]), (18, CONFIGURATION, self.server_id))
                    workers.add(cid[9] % WORKERS)
                # What it may use later.
                for later in client._quic._peer_cid_available:
                    self.assertEqual(later.cid[:9], bytes([CONFIGURATION]) + self.server_id)
            self.assertGreater(len(workers), 1, "eight clients on one worker")
            for client in clients:
                old = client._transport
                # From another port, by which the kernel would choose another worker in three of four cases.
                await loop.create_datagram_endpoint(lambda client=client: client, sock=new_socket())
                stack.callback(old.close)
                client.received.clear()
                client.send(0, bytes([0xC0, 0]))
                await client.wait_for(0, bytes([0xD0, 0]))

    def test_connection_ids_name_the_node_and_a_client_that_moves_reaches_its_worker(self):
        asyncio.run(asyncio.wait_for(self.move(), 4 * PATIENCE_S))
        eventually("the moves in the metrics",
                   lambda: self.metric("fulmar_quic_migrations_total") >= CLIENTS)

    def test_packets_of_another_nodes_connections_get_no_answer(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.connect(("127.0.0.1", self.port))
            stranger.settimeout(PATIENCE_S)
            rest = bytes(9) + b"x" * 60
            # A connection that this node does not know any more: a stateless reset.
            stranger.send(b"\x40" + bytes([CONFIGURATION]) + self.server_id + rest)
            self.assertGreater(len(stranger.recv(1500)), 20)
            other = bytes.fromhex("00c0ffee00c0ffee")
            for _ in range(50):
                stranger.send(b"\x40" + bytes([CONFIGURATION]) + other + rest)
            eventually("the packets in the metrics",
                       lambda: self.metric("fulmar_quic_other_node_packets_total") == 50)
            stranger.setblocking(False)
            with self.assertRaises(BlockingIOError):
                stranger.recv(1500)
        lines = [line for line in self.node.log.read_text().splitlines() if "0x00c0ffee00c0ffee" in line]
        self.assertEqual(len(lines), 1, lines)


if __name__ == "__main__":
    unittest.main()
