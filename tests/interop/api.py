"""A server with twins and users, and its API through Python's own HTTP client; for tests to inherit."""

import json
import ssl
import subprocess
import unittest
import urllib.error
import urllib.request

from broker import Broker, binary, eventually

PASSWORD = "correct horse"
ROLES = ("admin", "office", "reader", "device", "viewer")


class Api(unittest.TestCase):
    """Each of the twins `north` and `south` has a user of each role, such as `north-admin`."""

    SETTINGS = ""

    @classmethod
    def setUpClass(cls):
        cls.broker = Broker(cls.SETTINGS)
        cls.addClassCleanup(cls.broker.close)
        cls.tls = ssl.create_default_context(cafile=cls.broker.ca)
        for twin in ("north", "south"):
            cls.command("twin", "add", twin)
            for role in ROLES:
                cls.command("user", "add", f"{twin}-{role}", "--twin", twin, "--role", role)

    @classmethod
    def command(cls, *words):
        config = str(cls.broker.data / "fulmar.toml")
        line = [binary(), *words, "--data", str(cls.broker.data), "--config", config]
        subprocess.run(line, input=PASSWORD + "\n", text=True, check=True)

    def address(self, path: str) -> str:
        return f"https://localhost:{self.broker.ports['https']}{path}"

    def call(self, method, path, body=None, token=None, kind="application/json"):
        headers = {"content-type": kind}
        if token:
            headers["authorization"] = f"Bearer {token}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.address(path), method=method, headers=headers, data=data)
        with urllib.request.urlopen(request, context=self.tls) as answer:
            return json.loads(answer.read() or b"null")

    def log_in(self, user):
        # The running server sees what the command line made within half a second.
        tokens = []

        def done():
            try:
                tokens.append(self.call("POST", "/api/v1/session", {"user": user, "password": PASSWORD})["token"])
            except urllib.error.HTTPError as error:
                # Asked too often: it is told again when it may.
                if error.code not in (401, 429):
                    raise
            return bool(tokens)

        eventually(f"the login of {user}", done)
        return tokens[0]
