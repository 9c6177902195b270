"""What stands between devices and a central broker in bridge_kill.py: Fulmar's gateway, mosquitto's bridge and NanoMQ's,
each with the settings that keep most, and nothing at all. `kill` is kill -9; `start` again has the same ports and data."""

import getpass
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile

import ports
from broker import PATIENCE_S, binary, eventually

TOPICS = "sensor/#"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A program with a folder and a port for devices; forwards to the port `upstream`."""

    # The keep alive towards the central broker, for all the same: the least that mosquitto's bridge accepts.
    KEEP_ALIVE_S = 5

    def __init__(self, upstream=0):
        self.upstream = upstream
        self.work = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.work.name)
        [self.port] = ports.take(1)
        self.config = self.folder / "config"
        self.config.write_text("\n".join(self.settings()) + "\n")
        self.process = None
        self.start()

    def start(self):
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        eventually(f"{type(self).__name__} to listen", lambda: self.process.poll() is not None or listens(self.port))
        if self.process.poll() is not None:
            raise AssertionError(f"{self.command()} ended:\n{(self.folder / 'log').read_text(errors='replace')}")

    def kill(self):
        self.end(signal.SIGKILL)

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(PATIENCE_S)

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.work.cleanup()


class Mosquitto(Program):
    """A broker that stores every change at once. Run by root, it would give up its rights without `user`."""

    TITLE = "mosquitto's bridge"

    def command(self):
        return ["mosquitto", "-c", str(self.config)]

    def settings(self):
        lines = [
            f"listener {self.port} 127.0.0.1",
            "allow_anonymous true",
            f"user {getpass.getuser()}",
            "set_tcp_nodelay true",
            "persistence true",
            f"persistence_location {self.folder}/",
            "autosave_on_changes true",
            "autosave_interval 1",
            "max_queued_messages 0",
            "max_queued_bytes 0",
        ]
        if not self.upstream:
            return lines
        return lines + [
            "connection central",
            f"address 127.0.0.1:{self.upstream}",
            "bridge_protocol_version mqttv311",
            "local_clientid bridge-here",
            "remote_clientid bridge",
            "cleansession false",
            "notifications false",
            f"keepalive_interval {self.KEEP_ALIVE_S}",
            "restart_timeout 1",
            f"topic {TOPICS} out 1",
        ]


class NanoMq(Program):
    """From `nanomq` in the path, built with SQLite (NNG_ENABLE_SQLITE)."""

    TITLE = "NanoMQ's bridge"

    def command(self):
        return ["nanomq", "start", "--conf", str(self.config)]

    def settings(self):
        # Contexts for more messages at once than there are devices. The bridge keeps a message until it is acknowledged,
        # instead of the defaults' 8 s and 32 messages, and sends it again soon. One goes to the disk at once instead of
        # with 99 others.
        return [
            "system { num_taskq_thread = 4, max_taskq_thread = 16, parallel = 64 }",
            "mqtt { max_mqueue_len = 65535, max_packet_size = 1MB, retry_interval = 5s }",
            f'listeners.tcp {{ bind = "127.0.0.1:{self.port}" }}',
            f'log {{ to = [console], level = warn, dir = "{self.folder}", file = "nanomq.log" }}',
            f'sqlite {{ disk_cache_size = 1000000, mounted_file_path = "{self.folder}/", flush_mem_threshold = 1 }}',
            "bridges.mqtt.cache {",
            "  disk_cache_size = 1000000, flush_mem_threshold = 1,",
            f'  mounted_file_path = "{self.folder}/"',
            "}",
            "bridges.mqtt.central {",
            f'  server = "mqtt-tcp://127.0.0.1:{self.upstream}"',
            "  cancel_timeout = 86400000",
            "  max_send_queue_len = 65535, max_recv_queue_len = 65535",
            "  resend_interval = 500, resend_wait = 1000",
            f"  proto_ver = 4, keepalive = {self.KEEP_ALIVE_S}s, backoff_max = 1s, clean_start = false",
            '  clientid = "bridge"',
            f'  forwards = [{{ remote_topic = "{TOPICS}", local_topic = "{TOPICS}", qos = 1 }}]',
            "  max_parallel_processes = 16",
            "}",
        ]


class Fulmar(Program):
    """The gateway, with its defaults."""

    TITLE = "Fulmar's gateway"

    def command(self):
        return [binary(), "serve", "--config", str(self.config), "--data", str(self.folder / "data")]

    def settings(self):
        others = ["mqtts", "ws", "wss", "quic", "https", "webtransport", "http", "coap", "coaps", "mqtt_sn"]
        return [
            "[listeners]",
            f'mqtt = ["127.0.0.1:{self.port}"]',
            *(f"{other} = []" for other in others),
            "[upstream]",
            f'url = "mqtt://127.0.0.1:{self.upstream}"',
            'name = "bridge"',
            f"keep_alive_s = {self.KEEP_ALIVE_S}",
            "[[upstream.up]]",
            f'filter = "{TOPICS}"',
        ]


class Nothing:
    """The devices' own connections to the central broker: what the test itself loses, which has to be nothing."""

    TITLE = "no bridge (control)"

    def __init__(self, upstream: int):
        self.port = upstream

    def start(self):
        pass

    end = kill = close = start


def available() -> list:
    """The peers that can be started on this machine."""
    found = [Nothing, Fulmar]
    found += [Mosquitto] if shutil.which("mosquitto") else []
    found += [NanoMq] if shutil.which("nanomq") else []
    wanted = os.environ.get("FULMAR_BRIDGES")
    return [peer for peer in found if not wanted or peer.__name__.lower() in wanted.lower().split(",")]
