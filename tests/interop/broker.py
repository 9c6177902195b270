"""Starts the fulmar program for a test, on ports of its own, and stops it by process id."""

import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import ports

PATIENCE_S = int(os.environ.get("FULMAR_PATIENCE_S", "60"))


def binary() -> str:
    """The program under test; `make test` says where it is."""
    path = os.environ.get("FULMAR_BIN")
    if not path or not pathlib.Path(path).is_file():
        raise unittest.TestCase.failureException("set FULMAR_BIN to the fulmar binary (make test does)")
    return path


class Broker:
    """A broker with a data folder of its own; `kill` and `start` again keep ports and data.

    `prefix` is a command that runs it, somewhere else perhaps, as the same process; `addresses` are those
    of listeners that are not on loopback; `prepare` gets the data folder before the first start.
    """

    KINDS = ("mqtt", "mqtts", "ws", "wss", "quic", "https", "webtransport", "http", "coap", "coaps", "mqtt_sn")

    def __init__(self, settings="", prefix=(), addresses=None, prepare=None):
        self.settings = settings
        self.prefix = prefix
        self.addresses = {**dict.fromkeys(self.KINDS, "127.0.0.1"), **(addresses or {})}
        self.folder = tempfile.TemporaryDirectory()
        self.data = pathlib.Path(self.folder.name)
        # Where the program's data is, beside its settings and log.
        self.store = self.data
        self.ports = dict(zip(self.KINDS, ports.take(len(self.KINDS))))
        self.process = None
        if prepare:
            prepare(self.data)
        self.start()

    @property
    def ca(self) -> str:
        return str(self.data / "ca" / "ca.pem")

    def start(self):
        config = self.data / "fulmar.toml"
        lines = [f'{kind} = ["{self.addresses[kind]}:{port}"]' for kind, port in self.ports.items()]
        config.write_text("[listeners]\n" + "\n".join(lines) + "\n" + self.settings)
        log = open(self.data / "log", "ab")
        command = [*self.prefix, binary(), "serve", "--config", str(config), "--data", str(self.store)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"no ready line: {line!r}\n{(self.data / 'log').read_text()}")
        for word in line.split()[1:]:
            kind, address = word.split("=", 1)
            self.ports[kind] = int(address.rsplit(":", 1)[1])
        taken = {kind for kind, port in self.ports.items() if port in ports.defaults()}
        assert not taken, f"default ports in a test: {taken}"

    def kill(self):
        """As a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self.process.stdout.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()


def eventually(what: str, done, patience_s=PATIENCE_S, every_s=0.01):
    """Polls until `done()` is true; fails with `what` when it takes too long. The broker's API refuses more than 50
    requests per second of a user: what asks it needs a longer `every_s`."""
    end = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"waited too long for {what}")
        time.sleep(every_s)
