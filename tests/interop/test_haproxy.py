"""haproxy in front of the broker: with `send-proxy-v2` the broker sees clients' addresses, and haproxy's health checks
find it healthy."""

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import paho.mqtt.client as mqtt
import ports
from broker import PATIENCE_S, Broker, eventually

CONFIG = """
[proxy_protocol]
listeners = ["mqtt", "mqtts"]
from = ["127.0.0.1"]
[auth]
allow_anonymous = "always"
"""

HAPROXY = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout check 10s
frontend plain
    bind 127.0.0.1:{plain}
    default_backend mqtt
frontend secure
    bind 127.0.0.1:{secure}
    default_backend mqtts
frontend statistics
    mode http
    bind 127.0.0.1:{statistics}
    stats enable
    stats uri /
backend mqtt
    server fulmar 127.0.0.1:{mqtt} send-proxy-v2 proxy-v2-options crc32c,unique-id check inter 200ms
backend mqtts
    server fulmar 127.0.0.1:{mqtts} send-proxy-v2 check inter 200ms
"""


class Haproxy(unittest.TestCase):
    def setUp(self):
        self.broker = Broker(CONFIG)
        self.addCleanup(self.broker.close)
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        names = ["plain", "secure", "statistics"]
        self.ports = dict(zip(names, ports.take(len(names))))
        behind = {name: self.broker.ports[name] for name in ("mqtt", "mqtts")}
        (folder / "haproxy.cfg").write_text(HAPROXY.format(**self.ports, **behind))
        program = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        process = subprocess.Popen([program, "-q", "-db", "-f", folder / "haproxy.cfg"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        eventually("haproxy", lambda: self.status("mqtt") is not None)

    def status(self, backend):
        """Whether haproxy finds the broker healthy; None while it does not answer."""
        try:
            url = f"http://127.0.0.1:{self.ports['statistics']}/;csv"
            page = urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode()
        except (urllib.error.URLError, OSError):
            return None
        rows = [line.split(",") for line in page.splitlines()]
        of = dict(zip(rows[0], next(row for row in rows if row[:2] == [backend, "fulmar"])))
        return of["status"], int(of["chkfail"] or 0), of["check_status"]

    def test_addresses_and_health_checks(self):
        for name in ("plain", "secure"):
            with self.subTest(name):
                client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, name)
                if name == "secure":
                    client.tls_set(self.broker.ca)
                # An address of this machine that is not the proxy's.
                client.connect("127.0.0.1", self.ports[name], bind_address="127.0.0.9")
                client.loop_start()
                self.addCleanup(client.loop_stop)
                self.addCleanup(client.disconnect)
                eventually("the connection", client.is_connected)
                url = f"http://127.0.0.1:{self.broker.ports['http']}/connections/{name}"
                with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
                    address = json.load(page)["address"]
                self.assertTrue(address.startswith("127.0.0.9:"), address)
        for backend in ("mqtt", "mqtts"):
            eventually("health checks", lambda: (self.status(backend) or ("",))[::2] == ("UP", "L4OK"))
            self.assertEqual(self.status(backend)[1], 0, "no health check has failed")
