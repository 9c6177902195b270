"""A cluster in trouble: nodes and NATS servers are killed and paused, networks are cut, clocks are wrong and a disk is
full, while clients that we did not write publish and receive. What was acknowledged arrives, at QoS 2 once, in order;
and the log has one writer at a time.

FULMAR_CLUSTER_MESSAGES (of each client and QoS), FULMAR_CLUSTER_ROUNDS (of all kinds of trouble) and
FULMAR_CLUSTER_DRAINS make it long (`make cluster-kill-test`); FULMAR_CLUSTER_KINDS chooses kinds, with commas."""

import collections
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
import unittest

from broker import binary, eventually
from cluster_log import Log
from cluster_nodes import Node, begin, wait_serving
from cluster_traffic import PATIENCE_S, TOKEN, Absent, Paho, Pinned, QuicGo
from machines import BACK, BUS, FRONT, MIDDLE, Machines
from nats_servers import Servers
from test_cluster import setUpModule  # noqa: F401

MESSAGES = int(os.environ.get("FULMAR_CLUSTER_MESSAGES", "2000"))
ROUNDS = int(os.environ.get("FULMAR_CLUSTER_ROUNDS", "0"))
DRAINS = int(os.environ.get("FULMAR_CLUSTER_DRAINS", "1"))
# How fast each node's clock runs, in millionths.
RATES = [1_000_000, 900_000, 1_100_000]
# Of the disk that is filled.
DISK_MIB = 512


class Disk:
    """A file system of a few MiB, which can be filled."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "fulmar-test", str(self.folder)]
        subprocess.run(command, check=True)

    def fill(self):
        with open(self.folder / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 65536):
                    pass
            except OSError:
                pass

    def free(self):
        (self.folder / "filler").unlink()

    def close(self):
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)


class ServersWithDisk(Servers):
    """The last one has a disk of its own."""

    disk = None

    def run(self, index):
        if index == self.count - 1 and not self.disk:
            self.disk = Disk(self.folder_of(index))
        super().run(index)

    def close(self):
        super_close = super().close
        for index in range(self.count):
            self.kill(index)
        if self.disk:
            self.disk.close()
        super_close()


class Clock:
    """Of a node's process; see soak/clock.c."""

    def __init__(self, folder, index):
        self.file = pathlib.Path(folder, f"clock{index}")
        self.rate = RATES[index]
        self.set(0)

    def set(self, seconds):
        words = struct.pack("qq", int(seconds * 1e9), self.rate)
        with open(self.file, "r+b" if self.file.exists() else "wb") as file:
            file.write(words)


class Trouble(unittest.TestCase):
    KINDS = ["node killed", "server killed", "machine killed", "node paused", "server paused", "machine paused",
             "node cut from servers", "answers to node lost", "requests of node lost", "machine cut",
             "leader cut from servers", "node cut from clients", "clock shifted", "disk full"]
    # In CI.
    SHORT = ["machine killed", "node cut from servers", "leader cut from servers"]

    def setUp(self):
        self.machines = Machines()
        self.addCleanup(self.machines.close)
        folder = tempfile.TemporaryDirectory(prefix="fulmar-trouble-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.servers = ServersWithDisk(machines=self.machines)
        self.addCleanup(self.servers.close)
        issue = [binary(), "cert", "issue", "localhost", "--dir", self.folder, "--out", self.folder]
        subprocess.run(issue, check=True, capture_output=True, timeout=60)
        shim = self.folder / "clock.so"
        source = pathlib.Path(__file__).parent / "soak" / "clock.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
        self.clocks = [Clock(self.folder, machine.index) for machine in self.machines]
        # The absent session has all messages at the end.
        extra = f"""
[tls]
cert = "{self.folder / 'localhost.pem'}"
key = "{self.folder / 'localhost.key'}"
[limits]
max_queued_messages = {8 * MESSAGES}
max_queued_bytes = 1073741824
"""
        self.nodes = []
        for machine, clock in zip(self.machines, self.clocks):
            prefix = [*self.machines.inside(machine.node), "env", f"LD_PRELOAD={shim}", f"CLOCK_FILE={clock.file}"]
            node = Node(self.servers, f"node-{machine.index}", extra, prefix=prefix, machine=machine, quic=True)
            self.addCleanup(node.close)
            self.nodes.append(node)
        begin(self.nodes)

    # Each kind of trouble begins; it returns whether another node must serve then, and what ends it.

    def node_killed(self, node, leader):
        node.kill()
        return True, node.start

    def server_killed(self, node, leader):
        self.servers.kill(leader)
        return False, lambda: self.servers.run(leader)

    def machine_killed(self, node, leader):
        index = node.machine.index
        self.servers.kill(index)
        node.kill()

        def mend():
            self.servers.run(index)
            node.start()

        return True, mend

    def node_paused(self, node, leader):
        node.pause()
        return True, node.go_on

    def server_paused(self, node, leader):
        self.servers.pause(leader)
        return False, lambda: self.servers.go_on(leader)

    def machine_paused(self, node, leader):
        index = node.machine.index
        self.servers.pause(index)
        node.pause()

        def mend():
            self.servers.go_on(index)
            node.go_on()

        return True, mend

    def node_cut_from_servers(self, node, leader):
        self.machines.cut((node.machine.node, MIDDLE), (node.machine.node, BUS))
        return True, self.machines.mend

    def answers_to_node_lost(self, node, leader):
        self.machines.deafen((node.machine.node, MIDDLE), (node.machine.node, BUS))
        return True, self.machines.mend

    def requests_of_node_lost(self, node, leader):
        self.machines.deafen((node.machine.node, MIDDLE), (node.machine.node, BUS), sends=True)
        return True, self.machines.mend

    def machine_cut(self, node, leader):
        self.machines.cut_machine(node.machine)
        return True, self.machines.mend

    def leader_cut_from_servers(self, node, leader):
        self.machines.cut((self.machines[leader].server, BACK))
        return False, self.machines.mend

    def node_cut_from_clients(self, node, leader):
        self.machines.cut((node.machine.node, FRONT))
        # It serves on, as far as it can know.
        return None, self.machines.mend

    def clock_shifted(self, node, leader):
        clock = self.clocks[node.machine.index]
        clock.set(self.chance.choice([-1, 1]) * self.chance.choice([1, 30, 3600, 86400]))
        return False, lambda: None

    def disk_full(self, node, leader):
        # Of a server that follows, or that leads.
        self.servers.disk.fill()
        last = self.servers.count - 1

        def mend():
            self.servers.disk.free()
            # JetStream there may have ended itself.
            self.servers.kill(last)
            self.servers.run(last)

        return False, mend

    def trouble(self, kind):
        for one in self.traffic:
            one.publish(self.chunk)
        at = [len(one.times) for one in self.traffic]
        eventually("progress", lambda: all(len(one.times) > a for one, a in zip(self.traffic, at)), 30)
        node, leader = wait_serving(self.nodes)[0], self.servers.leader()
        began, served = time.monotonic(), 0.0
        print(f"{time.strftime('%H:%M:%S')} {kind}: {node.name}, leader n{leader}", flush=True)
        takeover, mend = getattr(self, kind.replace(" ", "_"))(node, leader)
        if takeover:
            _, served = wait_serving(self.nodes, but=node)
            self.progress(f"{kind}: progress at another node", time.monotonic())
        elif takeover is None:
            time.sleep(5)
        else:
            # Longer than an election takes, with a pause that decides nothing.
            time.sleep(self.chance.choice([1, 5, 12]))
            self.progress(f"{kind}: progress", time.monotonic())
        mend()
        self.servers.wait_ready()
        wait_serving(self.nodes)
        self.progress(f"{kind}: progress after it", time.monotonic())
        for other in self.nodes:
            self.assertIsNone(other.process.poll(), f"{other.name} has ended after {kind!r}")
        gaps = [one.longest_gap(began, time.monotonic()) for one in self.traffic]
        # The next one finds three nodes.
        ready = lambda: all(other.ready()[0] in (200, 503) for other in self.nodes)
        eventually(f"three nodes after {kind!r}", ready, PATIENCE_S)
        shown = ", ".join(f"{type(one).__name__} {one.qos}: {gap:.1f}" for one, gap in zip(self.traffic, gaps))
        leads = " (its server leads)" if leader == node.machine.index else ""
        print(f"  another serves after {served:.1f}{leads}; without an acknowledgement for s: {shown}", flush=True)
        self.took[kind].append((served, gaps))

    def progress(self, what, since):
        """Each publisher has an acknowledgement since then, unless it has no more messages."""
        eventually(what, lambda: all(one.times[-1] > since or one.is_settled() for one in self.traffic), PATIENCE_S)

    def drain(self):
        node = wait_serving(self.nodes)[0]
        for one in self.traffic:
            one.publish(self.chunk // 4)
        began = time.monotonic()
        node.command("drain", node.name)
        after, _ = wait_serving(self.nodes, but=node)
        self.progress("progress after a drain", time.monotonic())
        gaps = [one.longest_gap(began, time.monotonic()) for one in self.traffic]
        print(f"{time.strftime('%H:%M:%S')} drain, {node.name} to {after.name}; without an acknowledgement for s: "
              f"{', '.join(f'{gap:.2f}' for gap in gaps)}", flush=True)
        self.took["drain"].append((0, gaps))
        eventually("the drained node stands by", lambda: node.ready()[0] == 503)
        time.sleep(1)

    def plan(self):
        wanted = os.environ.get("FULMAR_CLUSTER_KINDS")
        kinds = wanted.split(",") if wanted else self.KINDS if ROUNDS else self.SHORT
        plan = []
        for _ in range(max(ROUNDS, 1)):
            self.chance.shuffle(kinds)
            plan += kinds
        return plan

    def test_nothing_acknowledged_is_lost_and_one_node_writes(self):
        seed = int(os.environ.get("FULMAR_CLUSTER_SEED") or random.randrange(1 << 32))
        self.chance = random.Random(seed)
        plan = self.plan()
        print(f"seed {seed}: {len(plan)} troubles, {MESSAGES} messages of each client and QoS", flush=True)
        self.chunk = max(MESSAGES // (3 * len(plan)), 100)
        self.took = collections.defaultdict(list)
        absent = Absent(self.nodes)
        self.traffic = [Paho(self.nodes, qos, MESSAGES) for qos in (1, 2)]
        self.traffic += [QuicGo(self.nodes, qos, MESSAGES, self.folder / "ca.pem") for qos in (1, 2)]
        for one in self.traffic:
            self.addCleanup(one.end)
        pinned = [Pinned(node) for node in self.nodes]
        for one in pinned:
            self.addCleanup(one.end)
        try:
            for kind in plan:
                self.trouble(kind)
            for _ in range(DRAINS):
                self.drain()
            for one in self.traffic:
                one.publish(MESSAGES)
            for one in self.traffic:
                one.check(self)
            self.check_log(pinned)
            absent.check(self, self.traffic)
        except AssertionError as error:
            raise AssertionError(f"{error}\nseed {seed}; logs: {self.keep_logs()}") from None
        self.report()

    def keep_logs(self):
        """In a folder that stays."""
        kept = pathlib.Path(tempfile.mkdtemp(prefix="fulmar-trouble-lost-"))
        for node in self.nodes:
            shutil.copy(node.log, kept / node.name)
        for log in self.servers.path.glob("*.log"):
            shutil.copy(log, kept / f"nats-{log.name}")
        return kept

    def check_log(self, pinned):
        state = self.servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]
        log = Log((self.servers.host(0), self.servers.ports[0]), state["first_seq"], state["last_seq"], TOKEN)
        print(f"log: {log.records} records, {log.bytes} bytes, {len(log.claims)} claims", flush=True)
        self.assertEqual(log.faults, [])
        self.assertEqual(log.number, state["last_seq"])
        if state["first_seq"] == 1:
            for one in self.traffic:
                acknowledged = {one.payload(number).encode() for number in one.acknowledged}
                self.assertEqual(acknowledged - log.found, set(), "acknowledged, and not in the log")
        for one in pinned:
            for claim, following in zip(log.claims, [*log.claims[1:], None]):
                if claim.node != one.node.name:
                    until = following.at if following else float("inf")
                    past = [at for at in one.acknowledged if claim.at < at < until]
                    self.assertEqual(len(past), 0, f"{one.node.name} acknowledged past {claim}")
        self.assertGreater(sum(len(one.acknowledged) for one in pinned), 0)

    def report(self):
        total = sum(len(one.acknowledged) for one in self.traffic)
        unknown = sum(len(one.unknown) for one in self.traffic)
        print(f"{total} acknowledged, {unknown} with a connection that broke; seconds without an acknowledgement, of all "
              "clients: minimum / median / 95 % / maximum; until another node serves: maximum", flush=True)
        for kind, found in self.took.items():
            gaps = sorted(gap for _, gaps in found for gap in gaps)
            most = gaps[min(int(len(gaps) * 0.95), len(gaps) - 1)]
            print(f"{kind} ({len(found)} times): {gaps[0]:.2f} / {statistics.median(gaps):.2f} / {most:.2f} / "
                  f"{gaps[-1]:.2f}; {max(served for served, _ in found):.1f}", flush=True)


if __name__ == "__main__":
    unittest.main()
