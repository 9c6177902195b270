"""A file over HTTP/1.1 and TLS, by Python's standard library: `receive PATH ADDRESS PORT CERTIFICATE KEY` accepts one PUT,
`send PATH ADDRESS PORT AUTHORITY` makes it. TLS ends a connection on which a byte was changed, so the sender begins again, as
a person would, until the file has arrived."""

import http.server
import json
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.request

# More than the file of the experiment, so that a stranger cannot fill the memory.
MAX_BYTES = 64 << 20
STALLED_S = 20
PATIENCE_S = 55


class Receiver(http.server.BaseHTTPRequestHandler):
    """Keeps the body of the first request that arrives whole."""

    protocol_version = "HTTP/1.1"
    timeout = STALLED_S

    def do_PUT(self):
        length = int(self.headers["Content-Length"])
        if length > MAX_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(length)
        if len(body) < length:
            return
        pathlib.Path(self.server.path).write_bytes(body)
        print(json.dumps({"event": "file", "bytes": length}), flush=True)
        self.send_response(204)
        self.end_headers()
        self.server.done = True

    def log_message(self, *_):
        """The log of requests goes nowhere."""


class Server(http.server.HTTPServer):
    path, done = "", False

    def handle_error(self, *_):
        """A connection that TLS ended: the sender comes again."""


def receive(path, address, port, certificate, key):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = Server((address, int(port)), Receiver)
    server.path, server.timeout = path, PATIENCE_S
    # The handshake belongs to the connection, whose errors are its own.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(json.dumps({"event": "listening"}), flush=True)
    while not server.done:
        server.handle_request()


def send(path, address, port, authority):
    context = ssl.create_default_context(cafile=authority)
    body = pathlib.Path(path).read_bytes()
    deadline, attempts = time.monotonic() + PATIENCE_S, 0
    while time.monotonic() < deadline:
        attempts += 1
        request = urllib.request.Request(f"https://{address}:{port}/object", data=body, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=STALLED_S, context=context):
                print(json.dumps({"event": "sent", "attempts": attempts}), flush=True)
                return 0
        except (urllib.error.URLError, OSError):
            continue
    print(f"the file did not arrive whole in {attempts} attempts", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit({"receive": receive, "send": send}[sys.argv[1]](*sys.argv[2:]))
