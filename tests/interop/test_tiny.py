"""The microcontrollers' client, here as a program on this machine (firmware/tests/examples/udp.rs), against
servers that share no code with it: aioquic's, quic-go's, and our broker's, which is quinn. A full handshake,
a publication and a command over MQTT, then resumption with all of it in 0-RTT packets; Retry and
HelloRetryRequest."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from broker import PATIENCE_S, Broker, binary

# What OpenSSL makes keys of.
ED25519 = ["-algorithm", "ed25519"]
P256 = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
HERE = pathlib.Path(__file__).resolve().parent


def program(name: str) -> str:
    """A program that `make test-interop` builds; it says where in this environment variable."""
    path = os.environ.get(name)
    if not path or not pathlib.Path(path).is_file():
        raise unittest.TestCase.failureException(f"{name} names no program (make test-interop sees to it)")
    return path


class Tiny(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.issue(ED25519)

    def issue(self, algorithm):
        """Makes the server's certificate and key; self.key is what the client pins."""
        folder, files = self.folder, self.files()
        # By OpenSSL: Python's cryptography does not read what ring makes of an Ed25519 key.
        make = ["openssl", "genpkey", *algorithm, "-out", f"{folder}/key.pem"]
        subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
        issue = ["issue", "localhost", "--key", f"{folder}/key.pem", "--out", str(folder), "--dir", f"{folder}/ca"]
        for file in files:
            pathlib.Path(file).unlink(missing_ok=True)
        subprocess.run([binary(), "cert", *issue], check=True, stdout=subprocess.DEVNULL)
        show = subprocess.run([binary(), "cert", "show", files[0], "--json"], check=True, stdout=subprocess.PIPE)
        self.key = json.loads(show.stdout)["public_key"]

    def files(self) -> list[str]:
        return [str(self.folder / "localhost.pem"), str(self.folder / "localhost.key")]

    @contextlib.contextmanager
    def server(self, *command):
        """Runs a server; gives its port, and when it has ended what else it said, in a list."""
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = []
        try:
            port = process.stdout.readline().strip()
            self.assertTrue(port.isdigit(), "the server does not listen")
            yield int(port), said
        finally:
            rest, _ = process.communicate(timeout=PATIENCE_S)
            said += rest.splitlines()

    def aioquic(self, kind=""):
        return self.server(sys.executable, str(HERE / "tiny_server.py"), *self.files(), kind)

    def quic_go(self, kind=""):
        return self.server(program("FULMAR_TINY_QUIC_GO"), *self.files(), kind)

    def client(self, port: int) -> tuple[int, list[str]]:
        """Runs the client: its exit status, and what happened to it."""
        command = [program("FULMAR_TINY"), f"127.0.0.1:{port}", "localhost", self.key]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=2 * PATIENCE_S)
        lines = [line.partition(" ms ")[2] or line for line in done.stdout.splitlines()]
        print("\n".join(lines))
        return done.returncode, lines

    def assert_all(self, port: int, resumed=True, early=True):
        """Everything works on both connections, and the second is as it should be."""
        status, lines = self.client(port)
        self.assertEqual(status, 0, lines)
        said = str(resumed).lower(), str(early).lower()
        new = "Handshake { resumed: false, early_data_accepted: false }"
        again = "Handshake {{ resumed: {}, early_data_accepted: {} }}".format(*said)
        self.assertEqual([line for line in lines if line.startswith("Handshake")], [new, again])
        for event, times in (("Published", 4), ("Subscribed", 2), ("Message", 2), ("Closed(Local)", 2)):
            self.assertEqual(sum(line.startswith(event) for line in lines), times, event)

    def assert_refused(self, port: int, reason: str):
        """The client ends with this error, at once and for good, without having trusted anybody."""
        status, lines = self.client(port)
        self.assertEqual((status, lines[-1]), (1, f"closed: {reason}"))
        self.assertFalse(any(line.startswith("Handshake") for line in lines))

    def test_aioquic(self):
        for algorithm in (ED25519, P256):
            self.issue(algorithm)
            with self.subTest(algorithm), self.aioquic() as (port, _):
                self.assert_all(port)

    def test_quic_go(self):
        for algorithm in (ED25519, P256):
            self.issue(algorithm)
            with self.subTest(algorithm), self.quic_go() as (port, _):
                self.assert_all(port)

    def test_quinn(self):
        cert, key = self.files()
        broker = Broker(f'[tls]\ncert = "{cert}"\nkey = "{key}"\n')
        self.addCleanup(broker.close)
        self.assert_all(broker.ports["quic"])

    def test_retry(self):
        for server in (self.aioquic, self.quic_go):
            with self.subTest(server.__name__), server("retry") as (port, _):
                self.assert_all(port)

    def test_hello_retry_request_with_a_cookie(self):
        with self.aioquic("cookie") as (port, said):
            # Early data ends with the first ClientHello; what was in it goes again.
            self.assert_all(port, early=False)
        self.assertEqual(said, ["asked again", "cookie returned"] * 2)

    def test_groups_it_does_not_have(self):
        # The server asks for what was not offered: illegal_parameter.
        with self.aioquic("group") as (port, said):
            self.assert_refused(port, "Tls(47)")
        self.assertEqual(said, ["asked again"])
        # The server has nothing in common with us: its handshake_failure (40), as QUIC says it.
        with self.quic_go("group") as (port, _):
            self.assert_refused(port, f"PeerTransport({0x100 + 40})")

    def test_another_key_is_refused(self):
        self.key = bytes(reversed(bytes.fromhex(self.key))).hex()
        for server in (self.aioquic, self.quic_go):
            with self.subTest(server.__name__), server() as (port, _):
                # 51: decrypt_error.
                self.assert_refused(port, "Tls(51)")


if __name__ == "__main__":
    unittest.main()
