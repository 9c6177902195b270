"""CoAP with libcoap's and aiocoap's clients and servers: plain and over DTLS, observing, and 100 KB in blocks over a
link that loses a tenth of the datagrams each way."""

import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import unittest

import ports
from broker import Broker, binary, eventually
from relay import Relay
from test_quic_go import program as go_program

PEER = str(pathlib.Path(__file__).parent / "coap_peer.py")
KEY = "a-key-of-more-than-16-bytes"
# tinydtls, which aiocoap has its DTLS from, takes none that is longer (DTLS_PSK_MAX_KEY_LEN).
SHORT_KEY = "0123456789abcdef"
LARGE = 100_000
WITH_KEY = {**os.environ, "FULMAR_COAP_KEY": SHORT_KEY}
# A tenth lost each way: a fifth of a hundred exchanges waits 2 to 3 s, some of them twice as long again.
LOSSY_S = 400
PATIENCE_S = float(os.environ.get("FULMAR_PATIENCE_S", 60))


def run(*command, timeout=PATIENCE_S, **more):
    return subprocess.run(command, capture_output=True, timeout=timeout, **more)


class Site(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.large = self.folder / "large"
        self.large.write_bytes(bytes(random.Random(7).choices(b"0123456789abcdef", k=LARGE)))

    def start(self, *command, **more) -> subprocess.Popen:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def issue(self, authority: pathlib.Path, name: str, *more) -> list[str]:
        """Paths of a certificate and its key."""
        issued = run(binary(), "cert", "issue", name, "--dir", str(authority), "--out", str(self.folder), *more)
        self.assertEqual(issued.returncode, 0, issued.stderr)
        return [str(self.folder / f"{name}.{kind}") for kind in ("pem", "key")]

    def relay(self, port: int, seed: int) -> int:
        """Through it a tenth is lost each way, the same datagrams in every run: drawn anew, one transfer in forty would
        lose a message and all its four retransmissions (0.19 ** 5 of a hundred exchanges), after which CoAP gives up, as
        RFC 7252 section 4.2 asks."""
        relay = Relay(port, loss=0.1, seed=seed)
        self.addCleanup(relay.close)
        return relay.port


class Server(Site):
    """Their clients, our server."""

    def setUp(self):
        super().setUp()
        keys = self.folder / "psk"
        keys.write_text(f"meter-7:{KEY}\nmeter-8:{SHORT_KEY}\n")
        keys.chmod(0o600)
        rule = '[[acl.rules]]\nallow = false\nanonymous = true\ntopic = "keyed/#"\n'
        self.broker = Broker(f'[coap]\npsk_file = "{keys}"\n{rule}')
        self.addCleanup(self.broker.close)

    def url(self, path: str, scheme="coap", port=None) -> str:
        return f"{scheme}://127.0.0.1:{port or self.broker.ports[scheme]}/{path}"

    def mqtt(self, *words):
        return run(binary(), *words[:1], f"mqtt://127.0.0.1:{self.broker.ports['mqtt']}", *words[1:])

    def test_libcoap_sets_reads_and_forgets(self):
        client = "coap-client-notls"
        self.assertIn(b"</ps>", run(client, "-m", "get", self.url(".well-known/core")).stdout)
        self.assertEqual(run(client, "-m", "put", "-e", "21.5", self.url("ps/plant/temp")).returncode, 0)
        self.assertEqual(run(client, "-m", "get", self.url("ps/plant/temp")).stdout.strip(), b"21.5")
        self.assertEqual(self.mqtt("sub", "-t", "plant/temp", "-C", "1").stdout, b"21.5\n")
        self.assertIn(b"</ps/plant/temp>", run(client, "-m", "get", self.url("ps")).stdout)
        run(client, "-m", "delete", self.url("ps/plant/temp"))
        self.assertIn(b"4.04", run(client, "-m", "get", self.url("ps/plant/temp")).stderr)

    def observed_by(self, observer, show):
        """Publishes until the observer shows it, then two more, which have to come in order."""
        eventually("an observation", lambda: self.publish_and_look("first", show))
        for text in ("second.", "third."):
            self.mqtt("pub", "-t", "seen", "-m", text, "-q", "1")
        eventually("the third message", lambda: "third." in show())
        self.assertLess(show().index("second."), show().index("third."))

    def publish_and_look(self, text, show):
        self.mqtt("pub", "-t", "seen", "-m", text, "-q", "1")
        return text in show()

    def collect(self, process):
        lines = []

        def read():
            while piece := os.read(process.stdout.fileno(), 4096):
                lines.append(piece.decode())

        threading.Thread(target=read, daemon=True).start()
        return lambda: "".join(lines)

    def test_libcoap_observes(self):
        observer = self.start("stdbuf", "-o0", "coap-client-notls", "-s", "120", "-m", "get", self.url("ps/seen"))
        self.observed_by(observer, self.collect(observer))

    def test_aiocoap_observes(self):
        observer = self.start(sys.executable, "-u", PEER, "observe", self.url("ps/seen"))
        self.observed_by(observer, self.collect(observer))

    def test_libcoap_with_a_key(self):
        for client in ("coap-client-openssl", "coap-client-gnutls"):
            with self.subTest(client):
                url = self.url("ps/keyed/a", "coaps")
                put = run(client, "-u", "meter-7", "-k", KEY, "-m", "put", "-e", client, url)
                self.assertEqual(put.stderr, b"")
                got = run(client, "-u", "meter-7", "-k", KEY, "-m", "get", url)
                self.assertEqual(got.stdout.strip(), client.encode())
                wrong = run(client, "-B", "5", "-u", "meter-7", "-k", "not-the-key-of-this-one", "-m", "get", url)
                self.assertNotIn(client.encode(), wrong.stdout)
        # The rules keep it from who has no name.
        self.assertIn(b"4.03", run("coap-client-notls", "-m", "get", self.url("ps/keyed/a")).stderr)

    def test_aiocoap_with_a_key(self):
        value, into = self.folder / "value", self.folder / "into"
        value.write_text("21.5")
        url = self.url("ps/keyed/b", "coaps")
        for work, file in (("put", value), ("get", into)):
            done = run(sys.executable, PEER, work, url, str(file), env=WITH_KEY)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(into.read_text(), "21.5")
        watched = self.url("ps/seen", "coaps")
        observer = self.start(sys.executable, "-u", PEER, "observe", watched, env=WITH_KEY)
        self.observed_by(observer, self.collect(observer))

    def test_pion_keeps_its_session_when_its_address_changes(self):
        """With a connection ID: otherwise what comes from an unknown address has no session."""
        self.pion(self.broker, "Coaps", **WITH_KEY)

    def pion(self, broker, tests, **env):
        env = {**os.environ, "FULMAR_CA": broker.ca, "FULMAR_COAPS": f"127.0.0.1:{broker.ports['coaps']}", **env}
        done = run(go_program(), "-test.v", "-test.run", tests, env=env, timeout=5 * PATIENCE_S, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("--- PASS: TestCoaps", done.stdout)

    def test_libcoap_believes_our_certificate(self):
        self.mqtt("pub", "-t", "a", "-m", "value", "-r", "-q", "1")
        for client in ("coap-client-openssl", "coap-client-gnutls"):
            with self.subTest(client):
                got = run(client, "-R", self.broker.ca, "-m", "get", self.url("ps/a", "coaps"))
                self.assertEqual(got.stdout.strip(), b"value", got.stderr)

    def test_libcoap_shows_a_certificate(self):
        """Who has one is the user whose name it has."""
        authority = self.folder / "authority"
        self.assertEqual(run(binary(), "cert", "ca", "--dir", str(authority)).returncode, 0)
        pem, key = self.issue(authority, "meter-9", "--client")
        rules = "".join(
            f'[[acl.rules]]\ntopic = "private/#"\nallow = {allow}\n'
            for allow in ('true\nuser = "meter-9"', "false")
        )
        ca = f'client_ca = "{authority / "ca.pem"}"\n'
        broker = Broker(f'[tls]\nclient_auth = "required"\n{ca}{rules}')
        self.addCleanup(broker.close)
        address = f"coaps://127.0.0.1:{broker.ports['coaps']}/ps"
        for client in ("coap-client-openssl", "coap-client-gnutls"):
            with self.subTest(client):
                shown = (client, "-B", "60", "-c", pem, "-j", key, "-R", broker.ca)
                value = f"21.5 by {client}"
                put = run(*shown, "-m", "put", "-e", value, f"{address}/private/a")
                self.assertEqual(put.stderr, b"")
                got = run(*shown, "-m", "get", f"{address}/private/a")
                self.assertEqual(got.stdout.strip(), value.encode(), got.stderr)
        # With a connection ID, which is in what its signature is about.
        self.pion(broker, "Coaps/GCM", FULMAR_CERT=pem, FULMAR_CERT_KEY=key)
        # Ours, with its own and without.
        url = address.removesuffix("/ps")
        ours = (binary(), "sub", url, "--cafile", broker.ca, "-t", "private/a", "-C", "1", "-W")
        self.assertEqual(run(*ours, "60", "--cert", pem, "--key", key).stdout.strip(), value.encode())
        self.assertNotEqual(run(*ours, "5").returncode, 0)
        bare = run("coap-client-openssl", "-B", "3", "-R", broker.ca, "-m", "get", f"{address}/private/a")
        self.assertNotIn(b"21.5", bare.stdout)

    def test_100_kb_at_ten_percent_loss(self):
        up, down = (self.relay(self.broker.ports["coap"], seed) for seed in (17, 56))
        into = self.folder / "into"
        put = self.start(sys.executable, PEER, "put", self.url("ps/aiocoap", port=up), str(self.large))
        libcoap = self.start("coap-client-notls", "-B", str(LOSSY_S), "-m", "put", "-f", str(self.large),
                             self.url("ps/libcoap", port=down))
        self.assertEqual((put.wait(LOSSY_S), libcoap.wait(LOSSY_S)), (0, 0))
        get = self.start(sys.executable, PEER, "get", self.url("ps/libcoap", port=up), str(into))
        # libcoap's client (4.3) forgets a download 93 s after it began, however far it is, and then waits in vain: at
        # this loss it needs 45 to 100 s, so one in twelve has to begin again.
        for _ in range(4):
            libcoap = run("coap-client-notls", "-B", "100", "-m", "get", self.url("ps/aiocoap", port=down),
                          timeout=LOSSY_S)
            if len(libcoap.stdout) >= LARGE:
                break
        self.assertEqual(get.wait(LOSSY_S), 0)
        self.assertEqual(into.read_bytes(), self.large.read_bytes())
        self.assertEqual(libcoap.stdout.strip(), self.large.read_bytes())


class Client(Site):
    """Our client, their servers."""

    def check(self, url, *credentials):
        """Sets a value, reads it, and is told of the next."""
        pub = (binary(), "pub", url, *credentials, "-t", "a/b", "-r", "-m")
        # A server may take a while to be there.
        eventually("a server", lambda: run(*pub, "first").returncode == 0)
        sub = self.start(binary(), "sub", url, *credentials, "-t", "a/b", "-C", "2", "-W", str(int(PATIENCE_S)))
        self.assertEqual(sub.stdout.readline(), "first\n")
        self.assertEqual(run(*pub, "second").returncode, 0)
        self.assertEqual(sub.stdout.readline(), "second\n")
        self.assertEqual(sub.wait(PATIENCE_S), 0)

    def large_through(self, port):
        url = f"coap://127.0.0.1:{self.relay(port, 56)}"
        large = self.large.read_bytes()
        # When its answer to the last block is lost, libcoap's server (4.3) takes that block, sent again with the
        # same message ID, for the whole body: then there is the end alone, and it has to be put again.
        for _ in range(5):
            pub = run(binary(), "pub", url, "-t", "large", "-r", "-f", str(self.large), timeout=LOSSY_S)
            self.assertEqual(pub.returncode, 0, pub.stderr)
            sub = run(binary(), "sub", url, "-t", "large", "-C", "1", "-N", timeout=LOSSY_S)
            if len(sub.stdout) > 1024 or not large.endswith(sub.stdout):
                break
        self.assertEqual(sub.stdout, large)

    def test_libcoap(self):
        port, _ = ports.take(2)
        self.start("coap-server-notls", "-A", "127.0.0.1", "-p", str(port), "-d", "10")
        self.check(f"coap://127.0.0.1:{port}")
        self.large_through(port)

    def test_libcoap_with_a_key(self):
        for server in ("coap-server-openssl", "coap-server-gnutls"):
            with self.subTest(server):
                # The port after the one it is given is for DTLS.
                port, _ = ports.take(2)
                self.start(server, "-A", "127.0.0.1", "-p", str(port), "-d", "10", "-k", KEY)
                self.check(f"coaps://127.0.0.1:{port + 1}", "-u", "meter-7", "-P", KEY)

    def test_libcoap_asks_for_a_certificate(self):
        authority = self.folder / "authority"
        self.assertEqual(run(binary(), "cert", "ca", "--dir", str(authority)).returncode, 0)
        ca = str(authority / "ca.pem")
        pem, key = self.issue(authority, "localhost", "--san", "127.0.0.1")
        own = self.issue(authority, "meter-9", "--client")
        for server in ("coap-server-openssl", "coap-server-gnutls"):
            with self.subTest(server):
                port, _ = ports.take(2)
                self.start(server, "-A", "127.0.0.1", "-p", str(port), "-d", "10", "-c", pem, "-j", key, "-C", ca)
                url = f"coaps://127.0.0.1:{port + 1}"
                self.check(url, "--cafile", ca, "--cert", own[0], "--key", own[1])
                without = run(binary(), "pub", url, "--cafile", ca, "-t", "a/b", "-m", "x")
                self.assertNotEqual(without.returncode, 0)

    def test_aiocoap(self):
        port, _ = ports.take(2)
        server = self.start(sys.executable, "-u", PEER, "serve", str(port))
        self.assertEqual(server.stdout.readline(), "ready\n")
        self.check(f"coap://127.0.0.1:{port}")

    def test_aiocoap_with_a_key(self):
        """Its tinydtls refuses clients that do not know of secure renegotiation."""
        port, _ = ports.take(2)
        server = self.start(sys.executable, "-u", PEER, "serve", str(port), env=WITH_KEY)
        self.assertEqual(server.stdout.readline(), "ready\n")
        # As with libcoap, the port after the one it is given.
        url = f"coaps://127.0.0.1:{port + 1}"
        self.check(url, "-u", "meter-8", "-P", SHORT_KEY)


if __name__ == "__main__":
    unittest.main()
