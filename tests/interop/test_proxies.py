"""Reverse proxies that end TLS, with the configurations of docs/proxies.md: pages, and Eclipse Paho over WebSocket."""

import json
import pathlib
import re
import shutil
import ssl
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import paho.mqtt.client as mqtt
import ports
from broker import PATIENCE_S, Broker, binary, eventually

PAGE = (pathlib.Path(__file__).parents[2] / "docs/proxies.md").read_text()
PASSWORD = "correct horse"


def block(language, number=0):
    """A block of the page."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return found[number]


def replaced(text, changes):
    for old, new in changes.items():
        assert old in text, f"{old} is not in the page"
        text = text.replace(old, str(new))
    return text


class Proxies(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.port, self.other = ports.take(2)

    def serve(self, *settings):
        """A broker with the page's settings, these in addition, and the user ann."""
        passwords = self.folder / "passwords"
        subprocess.run([binary(), "passwd", "ann", "--file", passwords], input=PASSWORD, text=True, check=True,
                       stdout=subprocess.DEVNULL)
        auth = block("toml").split("[listeners]")[0] + f'password_file = "{passwords}"\n'
        self.broker = Broker("\n".join([auth, *settings]))
        self.addCleanup(self.broker.close)
        self.pem, self.key = (self.broker.data / "ca" / name for name in ("server.pem", "server.key"))

    def page(self, language, number=0, listener="https"):
        """A block of the page, with the address of this broker's listener for that of its default port."""
        text, count = re.subn(r"127\.0\.0\.1:(\d+)", lambda found: self.address(found[1], listener), block(language, number))
        self.assertEqual(count, 1, text)
        return text

    def address(self, port, listener):
        self.assertIn(int(port), ports.defaults())
        return f"127.0.0.1:{self.broker.ports[listener]}"

    def run_proxy(self, name, text, *command, **environment):
        """Starts a proxy with a configuration, and waits for its port."""
        (self.folder / "configuration").write_text(text)
        program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
        output = open(self.folder / "output", "wb")
        self.addCleanup(output.close)
        process = subprocess.Popen([program, *command], stdout=output, stderr=output, cwd=self.folder,
                                   env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin", **environment})
        self.addCleanup(process.wait)
        self.addCleanup(process.terminate)

        def is_up():
            self.assertIsNone(process.poll(), (self.folder / "output").read_text())
            try:
                return self.get("/api/v1/status")[0] == 200
            except OSError:
                return False

        eventually(name, is_up)
        return process

    def get(self, path):
        context = ssl.create_default_context(cafile=self.broker.ca)
        url = f"https://localhost:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S, context=context) as answer:
            return answer.status, answer.headers, answer.read()

    def connect(self, bind=""):
        """A client over WebSocket; it sends its origin, as pages do."""
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "behind", transport="websockets")
        client.username_pw_set("ann", PASSWORD)
        client.tls_set(self.broker.ca)
        client.connect("localhost", self.port, bind_address=bind)
        return client

    def check_all(self, bind=""):
        """A page, and messages in both directions."""
        _, headers, body = self.get("/api/v1/status")
        self.assertIn("protocol", json.loads(body))
        self.assertNotIn(str(self.broker.ports["https"]), headers.get("alt-svc", ""))
        client, got = self.connect(bind), []
        client.on_message = lambda _client, _data, message: got.append(message.payload)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        eventually("the connection", client.is_connected)
        subscribed = []
        client.on_subscribe = lambda *_: subscribed.append(True)
        client.subscribe("a", 1)
        eventually("the subscription", lambda: subscribed)
        large = bytes(100_000)
        client.publish("a", large, 1)
        eventually("the message", lambda: got == [large])

    def nginx(self, changes=None):
        site = replaced(self.page("nginx"), {
            "listen 443 ssl": f"listen 127.0.0.1:{self.port} ssl",
            "broker.example;": "localhost;",
            "/etc/ssl/broker.example.pem": self.pem,
            "/etc/ssl/broker.example.key": self.key,
            **(changes or {}),
        })
        paths = "".join(f"{kind}_temp_path {self.folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        main = f"daemon off; pid {self.folder}/pid; error_log stderr; events {{}}\n"
        text = f"{main}http {{ access_log off; {paths}\n{site}\n}}"
        return self.run_proxy("nginx", text, "-e", "stderr", "-c", str(self.folder / "configuration"))

    def test_nginx(self):
        self.serve()
        metrics = self.page("nginx", 1, "http")
        self.nginx({"    location / {": f"{metrics}    location / {{"})
        self.check_all()
        self.assertIn(b"fulmar_", self.get("/metrics")[2])

    def test_nginx_that_does_not_pass_on_the_host(self):
        self.serve()
        host = {"        proxy_set_header Host $http_host;\n": ""}
        proxy = self.nginx(host)
        with self.assertRaisesRegex(mqtt.WebsocketConnectionError, "403|handshake"):
            self.connect()
        said = ("[http] allowed_origins", "have the proxy pass on the Host header")
        log = self.broker.data / "log"
        eventually("the line in the log", lambda: all(part in log.read_text() for part in said))
        proxy.terminate()
        proxy.wait()
        self.broker.close()
        origins = replaced(block("toml", 1), {"https://broker.example": f"https://localhost:{self.port}"})
        self.serve(re.sub("^  ", "", origins, flags=re.MULTILINE))
        self.nginx(host)
        self.check_all()

    def test_haproxy(self):
        self.serve(block("toml", 2))
        both = self.folder / "both.pem"
        both.write_text(self.pem.read_text() + self.key.read_text())
        text = replaced(self.page("haproxy"), {
            "bind :443": f"bind 127.0.0.1:{self.port}",
            "/etc/ssl/broker.example.pem": both,
        })
        self.run_proxy("haproxy", text, "-q", "-db", "-f", str(self.folder / "configuration"))
        # An address of this machine that is not the proxy's.
        self.check_all("127.0.0.9")
        url = f"http://127.0.0.1:{self.broker.ports['http']}/connections/behind"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            self.assertRegex(json.load(page)["address"], r"^127\.0\.0\.9:")

    def test_caddy(self):
        self.serve()
        site = replaced(self.page("caddyfile"), {
            "broker.example {": f"https://localhost:{self.port} {{\n    tls {self.pem} {self.key}",
        })
        text = f"{{\n    admin off\n    auto_https disable_redirects\n}}\n{site}"
        command = ["run", "--adapter", "caddyfile", "--config", str(self.folder / "configuration")]
        self.run_proxy("caddy", text, *command, XDG_DATA_HOME=str(self.folder))
        self.check_all()


if __name__ == "__main__":
    unittest.main()
