"""docs/outbox.md, in front of mosquitto over TCP and TLS: the page's file, its lines typed, and what it promises when the
link is cut and the outbox is killed."""

import pathlib
import re
import subprocess
import tempfile
import unittest

import ports
from bridge_peers import Mosquitto, Program
from broker import PATIENCE_S, binary, eventually
from pages import ROOT, commands, page
from tcp_relay import TcpRelay

PAGE = "docs/outbox.md"
READINGS = 50


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=PATIENCE_S, **more)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class Central(Mosquitto):
    """The broker that the reader has. `folder` has its certificate, and the outbox's."""

    def __init__(self, kind: str, secrets: pathlib.Path):
        self.kind, self.secrets = kind, secrets
        super().__init__()

    def settings(self):
        lines = super().settings()
        if self.kind == "plain":
            return lines
        lines += [f"cafile {self.secrets}/ca.pem", f"certfile {self.secrets}/localhost.pem",
                  f"keyfile {self.secrets}/localhost.key"]
        if self.kind == "certificate":
            return lines + ["require_certificate true", "use_identity_as_username true"]
        lines[lines.index("allow_anonymous true")] = "allow_anonymous false"
        return lines + [f"password_file {self.secrets}/users"]


class Outbox(Program):
    """As the page has it: its file, with ports and folders of the test and these keys."""

    def __init__(self, keys: dict):
        self.keys = keys
        [self.http] = ports.take(1)
        super().__init__()

    def settings(self):
        text = file_of_the_page()
        for word, meaning in [("0.0.0.0:1883", f"127.0.0.1:{self.port}"), ("127.0.0.1:14568", f"127.0.0.1:{self.http}"),
                              ('"/var/lib/fulmar"', f'"{self.folder}/data"')]:
            assert word in text, word
            text = text.replace(word, meaning)
        for key, value in self.keys.items():
            text, count = re.subn(rf'(?m)^(?:# )?{key} = "[^"]*"', f'{key} = "{value}"', text)
            assert count == 1, key
        return text.splitlines()

    def command(self):
        return [binary(), "serve", "--config", str(self.config)]

    def is_healthy(self, line):
        """The http listener may begin after the one for MQTT."""
        return subprocess.run(["bash", "-c", self.here(line)], capture_output=True, text=True,
                              timeout=PATIENCE_S).stdout == "ok\n"

    def type(self, line):
        return run("bash", "-c", self.here(line))

    def here(self, line):
        for word, meaning in [("mqtt://localhost", f"mqtt://127.0.0.1:{self.port}"), ("14568", str(self.http)),
                              ("fulmar pub", f"{binary()} pub"), ("fulmar health", f"{binary()} health")]:
            line = line.replace(word, meaning)
        return line


def file_of_the_page():
    return re.search(r"(?s)```toml\n(.*?)```", page(PAGE))[1]


class PutBefore(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        cert = [binary(), "cert"]
        ca = run(*cert, "ca", "--dir", self.folder / "ca").splitlines()[0]
        (self.folder / "ca.pem").write_bytes(pathlib.Path(ca).read_bytes())
        run(*cert, "issue", "localhost", "--dir", self.folder / "ca", "--out", self.folder)
        run(*cert, "issue", "site-1", "--client", "--dir", self.folder / "ca", "--out", self.folder)
        (self.folder / "upstream.password").write_text("secret\n")
        (self.folder / "upstream.password").chmod(0o600)
        run("mosquitto_passwd", "-c", "-b", self.folder / "users", "site-1", "secret")

    def reader(self, central):
        """What a subscriber of the broker has received, so far."""
        out = self.folder / f"received-{central.port}"
        command = ["mosquitto_sub", "-h", "localhost", "-p", str(central.port), "-i", "reader", "-c", "-q", "1", "-v",
                   "-t", "sensor/#"]
        if central.kind != "plain":
            command += ["--cafile", str(self.folder / "ca.pem")]
        if central.kind == "password":
            command += ["-u", "site-1", "-P", "secret"]
        if central.kind == "certificate":
            command += ["--cert", str(self.folder / "site-1.pem"), "--key", str(self.folder / "site-1.key")]
        # The subscription lasts from here on.
        run(*command, "-E")
        with open(out, "wb") as file:
            reader = subprocess.Popen(["stdbuf", "-oL", *command], stdout=file)
        self.addCleanup(reader.wait)
        self.addCleanup(reader.kill)
        return lambda: out.read_text().splitlines()

    def put_before(self, kind, keys):
        central = Central(kind, self.folder)
        self.addCleanup(central.close)
        received = self.reader(central)
        [port] = ports.take(1)
        link = TcpRelay(port, central.port)
        self.addCleanup(link.close)
        outbox = Outbox({"url": f"{'mqtt' if kind == 'plain' else 'mqtts'}://localhost:{port}", **keys})
        self.addCleanup(outbox.close)

        publish, health, metrics = [line for above, line in commands(PAGE) if "## See that it works" in above]
        outbox.type(publish)
        eventually("the message", lambda: received() == ["sensor/attic/radon 85"])
        # Messages do not wait for the answer to CONNECT.
        eventually("the connection", lambda: outbox.is_healthy(health))
        eventually("the acknowledgement", lambda: "fulmar_gateway_sent_total 1\n" in outbox.type(metrics))

        link.cut()
        eventually("the link to be down", lambda: outbox.type(health).startswith("not connected"))
        (outbox.folder / "readings").write_text("".join(f"{number}\n" for number in range(READINGS)))
        outbox.type(f"fulmar pub mqtt://localhost -t sensor/attic/radon -l -q 1 < {outbox.folder}/readings")
        outbox.kill()
        outbox.start()
        self.assertEqual(len(received()), 1)
        link.up()
        expected = [f"sensor/attic/radon {number}" for number in [85, *range(READINGS)]]
        eventually("what was acknowledged", lambda: len(set(received())) == len(expected))
        self.assertEqual(list(dict.fromkeys(received())), expected)

    def test_over_tcp(self):
        self.put_before("plain", {})

    def test_over_tls_with_a_password(self):
        self.put_before("password", {"user": "site-1", "password_file": self.folder / "upstream.password",
                                     "ca_file": self.folder / "ca.pem"})

    def test_over_tls_with_a_client_certificate(self):
        self.put_before("certificate", {"cert": self.folder / "site-1.pem", "key": self.folder / "site-1.key",
                                        "ca_file": self.folder / "ca.pem"})

    def test_packages_have_the_file_of_the_page(self):
        self.assertEqual((ROOT / "packaging/outbox.toml").read_text(), file_of_the_page())


if __name__ == "__main__":
    unittest.main()
