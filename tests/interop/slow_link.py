"""A slow link to a server: TCP on loopback, on which clients send so many bytes per second at most."""

import contextlib
import socket
import threading
import time

PART_BYTES = 16 << 10


class SlowLink:
    """`bytes_per_s` may change at any time. Ends with the test: its threads do not keep the process."""

    def __init__(self, port, bytes_per_s):
        self.to, self.bytes_per_s = ("127.0.0.1", port), bytes_per_s
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.to)
                for source, sink, slow in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self.copy, args=(source, sink, slow), daemon=True).start()

    def copy(self, source, sink, slow):
        with contextlib.suppress(OSError), source, sink:
            while part := source.recv(PART_BYTES):
                if slow:
                    time.sleep(len(part) / self.bytes_per_s)
                sink.sendall(part)

    def close(self):
        self.listener.close()
