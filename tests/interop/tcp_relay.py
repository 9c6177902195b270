"""A TCP relay on loopback that stands for a link: it can be cut, and be silent before."""

import select
import socket
import threading


class TcpRelay:
    """Relays to `server` (a port) from a port of its own, while it is up. A link that is silent accepts bytes and
    delivers none, as a network that has gone; `cut` resets what is open and refuses what is new."""

    def __init__(self, port: int, server: int):
        self.port, self.server = port, server
        self.lock = threading.Lock()
        self.open = set()
        self.delivers = True
        self.listener = None
        self.up()

    def up(self):
        self.delivers = True
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def silence(self):
        self.delivers = False

    def refuse(self):
        """New connections, until `up`, as a machine does on which nothing listens."""
        listener, self.listener = self.listener, None
        try:
            # Closing alone would not wake the thread that accepts.
            listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        listener.close()

    def cut(self):
        """Until `up`."""
        self.refuse()
        with self.lock:
            ends, self.open = self.open, set()
        for end in ends:
            _reset(end)

    def close(self):
        if self.listener:
            self.cut()

    def _accept(self, listener):
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.server), 5)
            except OSError:
                _reset(near)
                continue
            for end in (near, far):
                # Or small packets would wait for the acknowledgement of the ones before.
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.lock:
                was_cut = listener is not self.listener
                if not was_cut:
                    self.open |= {near, far}
            if was_cut:
                _reset(near)
                _reset(far)
                return
            threading.Thread(target=self._relay, args=(near, far), daemon=True).start()

    def _relay(self, near, far):
        onward = {near: far, far: near}
        try:
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    if self.delivers:
                        onward[end].sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            with self.lock:
                self.open -= {near, far}
            _reset(near)
            _reset(far)


def _reset(end):
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()
