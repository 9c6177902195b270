"""Nodes of a Fulmar cluster on NATS servers, for tests. They are killed by process id, and keep ports and data."""

import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import ports
from broker import PATIENCE_S, binary, eventually


class Node:
    """A node with a data folder of its own; `kill` and `start` again keep it. `program`: another than the tested one;
    `machine`: it listens there, instead of on loopback."""

    def __init__(self, servers, name, extra="", development=False, monitoring=True, prefix=(), machine=None, quic=False):
        self.folder = tempfile.TemporaryDirectory(prefix="fulmar-node-")
        self.data = pathlib.Path(self.folder.name)
        self.name, self.prefix, self.program = name, prefix, None
        self.host, self.machine = machine.front if machine else "127.0.0.1", machine
        self.mqtt, self.http, self.quic = ports.take(3)
        self.config = self.data / "fulmar.toml"
        self.config.write_text(f"""
[server]
data_dir = "{self.data / 'data'}"
drain_timeout_s = 1
[listeners]
mqtt = ["{self.host}:{self.mqtt}"]
mqtts = []
ws = []
quic = {[f"{self.host}:{self.quic}"] if quic else []}
https = []
http = ["{self.host}:{self.http}"]
coap = []
coaps = []
[auth]
allow_anonymous = "always"
[cluster]
servers = {servers.addresses(machine) if machine else servers.addresses()}
monitoring = {servers.monitoring() if monitoring else []}
node = "{name}"
address = "{self.host}:{self.mqtt}"
development = {str(development).lower()}
allow_anonymous = "{'always' if machine else 'loopback'}"
{extra}
""".replace("'", '"'))
        self.log = self.data / "log"
        self.process = None

    def command(self, *arguments, check=True):
        """`fulmar cluster` with this node's configuration."""
        done = subprocess.run([*self.prefix, self.program or binary(), "cluster", *arguments, "--config", self.config],
                              capture_output=True, text=True, timeout=120)
        if check and done.returncode:
            raise AssertionError(f"fulmar cluster {arguments}: {done.stderr}")
        return done

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.prefix, self.program or binary(), "serve", "--config", self.config],
                                            stdout=log, stderr=log)
        return self

    def ready(self):
        """The answer of /health/ready as code and text; 0 if there is none."""
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.http}/health/ready", timeout=3) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def close(self):
        if self.process and self.process.poll() is None:
            self.go_on()
            self.kill()
        self.folder.cleanup()


def serving(nodes):
    """The node that answers that it is ready, or None."""
    found = [node for node in nodes if node.process and node.process.poll() is None and node.ready()[0] == 200]
    return found[0] if found else None


def begin(nodes):
    """Starts a new cluster, made of what the first one's folder has. Returns the node that serves, and those that stand
    by."""
    nodes[0].command("init")
    for node in nodes:
        node.start()
    serves, _ = wait_serving(nodes)
    others = [node for node in nodes if node is not serves]
    for node in others:
        eventually(f"{node.name} stands by", lambda node=node: node.ready()[0] == 503)
    return serves, others


def wait_serving(nodes, but=None, patience_s=PATIENCE_S):
    """Waits for a node that serves, other than `but`; returns it and the seconds it took."""
    began, found = time.monotonic(), []

    def done():
        found[:] = [serving([node for node in nodes if node is not but])]
        return found[0] is not None

    try:
        eventually("a node that serves", done, patience_s)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{logs(nodes)}") from None
    return found[0], time.monotonic() - began


def logs(nodes):
    """The end of each node's log."""
    return "\n".join(f"== {node.name}\n{node.log.read_text()[-3000:]}" for node in nodes if node.log.exists())
