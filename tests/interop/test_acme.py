"""Certificates by ACME from Pebble, Let's Encrypt's test server (pebble/): ordered, shown on listeners that
run, kept over a restart, renewed; and what happens when there are none to be had."""

import asyncio
import json
import os
import pathlib
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
import unittest

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration
from cryptography.hazmat.primitives.serialization import Encoding

import ports
from broker import Broker, binary, eventually

NAME = "broker.fulmar.test"
BLOCKED = "blocked.fulmar.test"
LONG_S = 90 * 24 * 3600
SHORT_S = 24


def program(name: str) -> str:
    """A program of Pebble's; `make test-interop` builds them and says where they are."""
    path = pathlib.Path(os.environ.get("FULMAR_PEBBLE", "")) / name
    if not path.is_file():
        raise unittest.TestCase.failureException("set FULMAR_PEBBLE to Pebble's folder (make test-interop does)")
    return str(path)


class Pebble:
    """An authority that finds every name on this machine, at port `https`."""

    def __init__(self, https: int, validity_s: int = LONG_S):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        self.port, self.management, self.dns = ports.take(3)
        self.processes = []
        ca = ["--dir", str(self.home / "ca")]
        subprocess.run([binary(), "cert", "ca", *ca], check=True, capture_output=True)
        issue = [binary(), "cert", "issue", "localhost", "--san", "127.0.0.1", *ca, "--out", str(self.home)]
        subprocess.run(issue, check=True, capture_output=True)
        settings = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self.management}",
            "certificate": str(self.home / "localhost.pem"),
            "privateKey": str(self.home / "localhost.key"),
            "httpPort": 1,
            "tlsPort": https,
            "keyAlgorithm": "ecdsa",
            "domainBlocklist": [BLOCKED],
            "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "the only one", "validityPeriod": validity_s}},
        }
        (self.home / "pebble.json").write_text(json.dumps({"pebble": settings}))

    @property
    def settings(self) -> str:
        ca = next((self.home / "ca").glob("**/ca.pem"))
        return (
            f'[acme]\ndirectory = "https://127.0.0.1:{self.port}/dir"\nca_file = "{ca}"\n'
            f'agree_to_terms = true\ncontact = ["mailto:operator@fulmar.test"]\ndomains = ["{NAME}"]\n'
        )

    def start(self):
        off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]
        # Its commands are not used; port 0 keeps them out of the way.
        dns = ["-dnsserver", f"127.0.0.1:{self.dns}", "-management", "127.0.0.1:0", "-defaultIPv4", "127.0.0.1"]
        self.run([program("pebble-challtestsrv"), *off, *dns])
        config = ["-config", str(self.home / "pebble.json"), "-dnsserver", f"127.0.0.1:{self.dns}"]
        self.run([program("pebble"), *config])
        eventually("Pebble to listen", lambda: listens(self.port) and listens(self.dns))

    def run(self, command):
        # One nonce in twenty is refused, as clients have to expect.
        env = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "5"}
        with open(self.home / "log", "ab") as log:
            self.processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def orders(self) -> int:
        return (self.home / "log").read_text().count("/order-plz")

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait(10)
        self.folder.cleanup()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def shown(port: int) -> bytes:
    """The certificate a TLS client sees, in DER."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 10) as plain:
        with context.wrap_socket(plain, server_hostname=NAME) as tls:
            return tls.getpeercert(binary_form=True)


def shown_by_quic(port: int, alpn: str) -> bytes:
    """The certificate a QUIC client sees, in DER."""

    async def look():
        configuration = QuicConfiguration(is_client=True, alpn_protocols=[alpn], server_name=NAME)
        configuration.verify_mode = ssl.CERT_NONE
        async with connect("127.0.0.1", port, configuration=configuration) as client:
            return client._quic.tls._peer_certificate.public_bytes(Encoding.DER)

    return asyncio.run(look())


def issuer(certificate: bytes) -> str:
    command = ["openssl", "x509", "-inform", "DER", "-noout", "-issuer"]
    return subprocess.run(command, input=certificate, capture_output=True, check=True).stdout.decode()


class Acme(unittest.TestCase):
    def pebble(self, https: int, **named) -> Pebble:
        pebble = Pebble(https, **named)
        self.addCleanup(pebble.close)
        return pebble

    def broker(self, settings: str) -> Broker:
        broker = Broker(settings)
        self.addCleanup(broker.close)
        return broker

    def log(self, broker: Broker) -> str:
        return (broker.data / "log").read_text()

    def at(self, port: int):
        """Where the next broker serves https: Pebble has to know it first."""
        os.environ["FULMAR_LISTENERS__HTTPS"] = f'["127.0.0.1:{port}"]'
        self.addCleanup(os.environ.pop, "FULMAR_LISTENERS__HTTPS", None)

    def started(self, **named) -> tuple[Pebble, Broker]:
        [port] = ports.take(1)
        pebble = self.pebble(port, **named)
        pebble.start()
        self.at(port)
        return pebble, self.broker(pebble.settings)

    def received(self, broker: Broker):
        eventually("the certificate", lambda: "received from" in self.log(broker))

    def everywhere(self, broker: Broker, certificate: bytes):
        for listener in ("mqtts", "wss", "https"):
            self.assertEqual(shown(broker.ports[listener]), certificate, listener)
        self.assertEqual(shown_by_quic(broker.ports["quic"], "mqtt"), certificate)
        self.assertEqual(shown_by_quic(broker.ports["https"], "h3"), certificate)

    def test_it_is_shown_without_a_restart_and_kept_over_one(self):
        pebble, broker = self.started()
        self.received(broker)
        first = shown(broker.ports["https"])
        self.assertIn("Pebble", issuer(first))
        self.everywhere(broker, first)
        # What else is read again does not bring back the server's own.
        broker.process.send_signal(signal.SIGHUP)
        eventually("the reload", lambda: "reloaded" in self.log(broker))
        self.everywhere(broker, first)
        self.assertIn("no certificate of", self.log(broker), "said that it began with its own")
        files = list((broker.data / "acme").glob("*/*"))
        self.assertEqual(sorted(file.name for file in files), ["account.json", "certificate.pem"])
        self.assertEqual({stat.S_IMODE(file.stat().st_mode) for file in files}, {0o600})
        orders = pebble.orders()
        self.assertEqual(broker.stop(), 0)
        broker.start()
        self.assertEqual(shown(broker.ports["https"]), first)
        self.assertEqual(pebble.orders(), orders, "no other order")

    def test_it_is_renewed_while_it_runs(self):
        pebble, broker = self.started(validity_s=SHORT_S)
        self.received(broker)
        mqtt_over_quic = lambda: shown_by_quic(broker.ports["quic"], "mqtt")
        http3 = lambda: shown_by_quic(broker.ports["https"], "h3")
        mqtts = lambda: shown(broker.ports["mqtts"])
        looks = [(look, look()) for look in (mqtts, mqtt_over_quic, http3)]
        for look, first in looks:
            eventually("a renewal", lambda: look() != first)
            self.assertIn("Pebble", issuer(look()))

    def test_a_reload_while_an_order_is_under_way_harms_nothing(self):
        pebble, broker = self.started(validity_s=SHORT_S)
        self.received(broker)
        renewals = lambda: self.log(broker).count("received from")
        while renewals() < 2:
            # Whatever comes first, what is shown is the authority's.
            broker.process.send_signal(signal.SIGHUP)
            self.assertIn("Pebble", issuer(shown(broker.ports["https"])))
            self.assertIn("Pebble", issuer(shown_by_quic(broker.ports["quic"], "mqtt")))

    def test_without_an_authority_it_runs_on_and_asks_again(self):
        [port] = ports.take(1)
        self.at(port)
        pebble = self.pebble(port)
        broker = self.broker(pebble.settings)
        eventually("the log", lambda: "check [acme] directory" in self.log(broker))
        self.assertIn("Fulmar", issuer(shown(broker.ports["https"])))
        pebble.start()
        broker.process.send_signal(signal.SIGHUP)
        self.received(broker)
        self.assertIn("Pebble", issuer(shown(broker.ports["https"])))

    def test_a_refused_order_is_told(self):
        [port] = ports.take(1)
        pebble = self.pebble(port)
        pebble.start()
        broker = self.broker(pebble.settings.replace(NAME, BLOCKED))
        eventually("the log", lambda: "remove the names from [acme] domains" in self.log(broker))
        self.assertIn("Fulmar", issuer(shown(broker.ports["mqtts"])))

    def test_a_name_that_leads_elsewhere_is_told(self):
        # Nobody listens where Pebble looks.
        [port] = ports.take(1)
        pebble = self.pebble(port)
        pebble.start()
        broker = self.broker(pebble.settings)
        eventually("the log", lambda: f"{NAME} is not validated" in self.log(broker))
        self.assertIn("port 443 of every name", self.log(broker))
        self.assertIn("Fulmar", issuer(shown(broker.ports["https"])))


if __name__ == "__main__":
    unittest.main()
