"""Who publishes twice: a message that the server has released must not be published again. A scripted server shows
what Paho's client does after a reconnection that was refused, and that ours of it (paho_client.py) does not."""

import socket
import threading
import unittest

import paho.mqtt.client as paho

import ports
from broker import PATIENCE_S
from paho_client import Client, lasting_client

PUBLISH, PUBREL = 3, 6
CONNACK = bytes([0x20, 3, 0, 0, 0])


def listen(port):
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.settimeout(PATIENCE_S)
    server.bind(("127.0.0.1", port))
    server.listen()
    return server


def exactly(connection, size):
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise ConnectionError("closed within a packet")
        got += more
    return got


def packet(connection):
    """Type and body of the next packet, none of which is longer than 127 bytes."""
    first, length = exactly(connection, 2)
    return first >> 4, exactly(connection, length)


class Released(unittest.TestCase):
    def accept(self, server):
        connection, _ = server.accept()
        self.addCleanup(connection.close)
        connection.settimeout(PATIENCE_S)
        packet(connection)
        connection.sendall(CONNACK)
        return connection

    def first_after_a_refusal(self, kind):
        """What a client sends first that has sent PUBREL before its server went away and refused it once."""
        port = ports.take(1)[0]
        server = listen(port)
        client = lasting_client("c", port, kind)
        refused = threading.Event()
        client.on_connect_fail = lambda *rest: refused.set()
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        connection = self.accept(server)
        client.publish("t", "once", 2)
        sent, body = packet(connection)
        self.assertEqual(sent, PUBLISH)
        identifier = body[3:5]
        connection.sendall(bytes([0x50, 2]) + identifier)
        self.assertEqual(packet(connection)[0], PUBREL)
        server.close()
        connection.close()
        self.assertTrue(refused.wait(PATIENCE_S))
        server = listen(port)
        self.addCleanup(server.close)
        return packet(self.accept(server))[0]

    def test_pahos_client_publishes_again_what_it_has_released(self):
        # When this fails, Paho has been repaired, and paho_client.Client can go.
        self.assertEqual(self.first_after_a_refusal(paho.Client), PUBLISH)

    def test_the_tests_client_does_not(self):
        self.assertEqual(self.first_after_a_refusal(Client), PUBREL)


if __name__ == "__main__":
    unittest.main()
