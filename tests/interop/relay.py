"""A UDP relay between clients and a server on loopback that loses datagrams by a seed, and remembers what
the clients sent first."""

import random
import socket
import threading


class Relay:
    """Relays to `server` (a port) from a port of its own. `loss` is the share of datagrams lost, each way;
    which ones is drawn from `seed`, datagram by datagram. Each address of a client's is a connection."""

    def __init__(self, server: int, loss=0.0, seed=0):
        self.server = ("127.0.0.1", server)
        self.loss = loss
        self.chances = {"up": random.Random(f"{seed} up"), "down": random.Random(f"{seed} down")}
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.onward = {}
        # Clients' datagrams, by connection in the order of their beginning.
        self.sent = {}
        self.lost = {"up": 0, "down": 0}
        self.closing = False
        threading.Thread(target=self._up, daemon=True).start()

    def firsts(self) -> list[bytes]:
        """The first datagram of each connection."""
        return [datagrams[0] for datagrams in list(self.sent.values())]

    def _loses(self, way: str) -> bool:
        lost = self.chances[way].random() < self.loss
        self.lost[way] += lost
        return lost

    def _up(self):
        while not self.closing:
            try:
                datagram, client = self.socket.recvfrom(65535)
            except OSError:
                return
            if client not in self.onward:
                onward = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                onward.connect(self.server)
                self.sent.setdefault(client, [])
                self.onward[client] = onward
                threading.Thread(target=self._down, args=(client, onward), daemon=True).start()
            self.sent[client].append(datagram)
            if not self._loses("up"):
                try:
                    self.onward[client].send(datagram)
                except OSError:
                    pass

    def _down(self, client, onward):
        while not self.closing:
            try:
                datagram = onward.recv(65535)
                if not self._loses("down"):
                    self.socket.sendto(datagram, client)
            except ConnectionRefusedError:
                continue
            except OSError:
                return

    def forget(self):
        """Gives each client another port towards the server, as a router does that was started again. What still
        comes to the old ones is lost."""
        onward, self.onward = self.onward, {}
        self._end(onward.values())

    def close(self):
        self.closing = True
        self._end([self.socket, *self.onward.values()])

    @staticmethod
    def _end(sockets):
        for one in sockets:
            # Closing alone would not wake the threads that read.
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


def replayed(server: int, datagrams: list[bytes]) -> list[bytes]:
    """Sends these to the server again from a new address; returns what it answers within a second of
    quiet."""
    answers = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect(("127.0.0.1", server))
        one.settimeout(1)
        for datagram in datagrams:
            one.send(datagram)
        try:
            while True:
                answers.append(one.recv(65535))
        except (TimeoutError, ConnectionRefusedError):
            return answers
