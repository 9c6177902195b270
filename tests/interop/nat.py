"""A network address translator for UDP, as a program for a namespace: what comes to LISTEN goes to TARGET
from a port of the sender's own at OUTSIDE, and answers go back.

A line with an address on standard input makes it forget all ports, as a restarted router does, and use
this address from now on. What still comes to the old ones is lost.

    nat.py LISTEN:PORT TARGET:PORT OUTSIDE
"""

import selectors
import socket
import sys


class Nat:
    def __init__(self, listen, target, outside):
        self.target, self.outside = target, outside
        self.selector = selectors.DefaultSelector()
        self.inside = self.open(listen, self.outward)
        self.selector.register(sys.stdin, selectors.EVENT_READ, self.move)
        self.ports = {}

    def open(self, address, use):
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        udp.bind(address)
        self.selector.register(udp, selectors.EVENT_READ, use)
        return udp

    def outward(self):
        data, client = self.inside.recvfrom(65536)
        if client not in self.ports:
            self.ports[client] = self.open((self.outside, 0), lambda: self.inward(client))
        self.ports[client].sendto(data, self.target)

    def inward(self, client):
        self.inside.sendto(self.ports[client].recv(65536), client)

    def move(self):
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        self.outside = line.strip()
        for udp in self.ports.values():
            self.selector.unregister(udp)
            udp.close()
        self.ports.clear()
        print("moved", flush=True)

    def run(self):
        print("ready", flush=True)
        while True:
            for key, _ in self.selector.select():
                # An earlier event may have closed it.
                if key.fileobj is sys.stdin or key.fileobj.fileno() >= 0:
                    key.data()


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    Nat(address(sys.argv[1]), address(sys.argv[2]), sys.argv[3]).run()
