#!/usr/bin/env python3
"""A broker alone beside a cluster: three nodes and three NATS servers on this machine. `make bench-cluster`.

Each message is durable: sessions outlive their connections, and at QoS 1 a publisher's acknowledgement waits for the
disk, of the broker or of a majority of the NATS servers. Rounds are interleaved. The CPU time of each part is told
apart: the node that serves, the other nodes, the NATS servers, and the load generator (`fulmar bench`). How long
acknowledgements take is measured by a client of its own meanwhile (acknowledgements.py).

--rmqtt PROGRAM: also a raft cluster of three RMQTT nodes (`benches/peers/build target/peers cluster`) under the same load.
It is not like for like: RMQTT acknowledges what one node has in memory. All its nodes serve clients; here, one has the load.

Everything shares one machine's processors and disk, so a cluster shows what its parts cost together, not what three
machines carry; benches/cluster_capacity.py computes that.

--instructions: under valgrind instead, instructions per message of the broker alone and of a node that serves; with
--before PROGRAM, also of another program alone.

Prints a Markdown table, and writes it with every figure to bench-results/cluster.md and .json. Standard library only;
nats-server must be in the path.
"""

import argparse
import ctypes
import datetime
import functools
import json
import os
import pathlib
import platform
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import types
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))

import ports  # noqa: E402
from acknowledgements import Publisher, quantile  # noqa: E402
from cluster_nodes import Node, wait_serving  # noqa: E402
from nats_servers import Servers  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
# name: arguments of fulmar bench
SCENARIOS = {
    "one client, one message at a time": ["pairs", "-n", "1", "--window", "1", "--burst", "1"],
    "50 clients, one message at a time each": ["pairs", "-n", "50", "--window", "1", "--burst", "1"],
    "500 messages/s of 100 clients": ["fan-in", "--publishers", "100", "--subscribers", "5", "--rate", "500"],
    "50 clients, flat out": ["pairs", "-n", "50"],
}
# Fewer clients for --instructions: valgrind is slow.
COUNTED = {
    "8 pairs of clients, flat out": ["pairs", "-n", "8"],
    "one client, one message at a time": ["pairs", "-n", "1", "--window", "1", "--burst", "1"],
}
QUANTILES = [0.5, 0.95, 0.99, 1.0]
RMQTT_NOTE = "RMQTT is not like for like: it acknowledges what one node has in memory, Fulmar what is on disks. For its CPU per " \
             "message, messages follow from the generator's rate."
NO_SERVERS = types.SimpleNamespace(addresses=list, monitoring=list)


class Group:
    """Processes of one kind, and the CPU time they had."""

    def __init__(self, pids):
        self.pids = pids

    def cpu_s(self):
        return sum(cpu_s(pid) for pid in self.pids)


def cpu_s(pid):
    """User and system time of a process in seconds."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Alone:
    name = "alone"

    def __init__(self, prefix=()):
        self.node = Node(NO_SERVERS, "alone", prefix=prefix)
        text = self.node.config.read_text().split("[cluster]")[0]
        self.node.config.write_text(text)
        self.node.start()
        wait_serving([self.node])

    port = property(lambda self: self.node.mqtt)

    def groups(self):
        return {"serving": Group([self.node.process.pid])}

    def messages(self):
        return received(self.node)

    def log_bytes(self):
        return None

    def close(self):
        self.node.close()


class Cluster:
    """Three nodes on three servers; or, with development, one on one."""

    name = "cluster of 3"

    def __init__(self, count=3, prefix=()):
        self.servers, self.nodes = Servers(count), []
        try:
            self.nodes = [Node(self.servers, f"n{index}", development=count == 1) for index in range(count)]
            self.nodes[0].command("init")
            self.nodes[0].prefix = prefix
            for node in self.nodes:
                node.start()
            self.serving, _ = wait_serving(self.nodes)
            for node in self.nodes:
                while node is not self.serving and node.ready()[0] != 503:
                    time.sleep(0.1)
        except BaseException:
            self.close()
            raise

    port = property(lambda self: self.serving.mqtt)
    node = property(lambda self: self.serving)

    def groups(self):
        others = [node.process.pid for node in self.nodes if node is not self.serving]
        servers = [process.pid for process in self.servers.processes]
        return {"serving": Group([self.serving.process.pid]), "other nodes": Group(others),
                "NATS servers": Group(servers)}

    def messages(self):
        return received(self.serving)

    def log_bytes(self):
        return self.servers.request("$JS.API.STREAM.INFO.FULMAR_LOG", {})["state"]["bytes"]

    def close(self):
        for node in self.nodes:
            node.close()
        self.servers.close()


class Rmqtt:
    """Three nodes of RMQTT; the one that has the load leads raft."""

    name = "RMQTT, raft cluster of 3, in memory"
    start_s = 60

    def __init__(self, program, count=3):
        self.folder = tempfile.TemporaryDirectory(prefix="fulmar-rmqtt-")
        taken = ports.take(3 * count)
        self.ports = taken[:count]
        grpc, raft = (",".join(f"127.0.0.1:{port}" for port in taken[at:at + count]) for at in (count, 2 * count))
        self.processes = []
        try:
            for number, port in enumerate(self.ports, 1):
                with open(pathlib.Path(self.folder.name, f"log{number}"), "wb") as log:
                    command = [program, str(number), f"127.0.0.1:{port}", grpc, raft]
                    self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder.name))
            for process, port in zip(self.processes, self.ports):
                self.wait_listening(process, port)
        except BaseException:
            self.close()
            raise

    def wait_listening(self, process, port):
        """A node listens once the cluster has answered it."""
        end = time.monotonic() + self.start_s
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        logs = [file.read_text()[-1000:] for file in sorted(pathlib.Path(self.folder.name).iterdir())]
        raise RuntimeError("a node of RMQTT did not start:\n" + "\n".join(logs))

    port = property(lambda self: self.ports[0])

    def groups(self):
        first, *others = (process.pid for process in self.processes)
        return {"serving": Group([first]), "other nodes": Group(others)}

    def messages(self):
        """Unknown: nothing in this program shows its counters."""
        return None

    def log_bytes(self):
        return None

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
        self.folder.cleanup()


def received(node):
    """PUBLISH packets that a node has received."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("fulmar_messages_received_total"):
                return int(float(line.split()[-1]))
    raise RuntimeError("no metric fulmar_messages_received_total")


def load(generator, port, arguments, seconds):
    command = [generator, "bench", *arguments, "-q", "1", "--persistent", f"mqtt://127.0.0.1:{port}", "--json",
               "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 20 + 120, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:] or "the load generator failed")
    return json.loads(done.stdout)


def measure(generator, target, scenario, seconds):
    """One cell on what runs already: rate, latency, and CPU time of each part per message."""
    groups = target.groups()
    before = {name: group.cpu_s() for name, group in groups.items()}
    messages, log_bytes, publisher = target.messages(), target.log_bytes(), Publisher(target.port)
    try:
        report = load(generator, target.port, SCENARIOS[scenario], seconds)
    finally:
        times = publisher.stop()
    report["acknowledged_ms"] = {str(share): quantile(times, share) for share in QUANTILES}
    report["acknowledged_samples"] = len(times)
    used = {name: group.cpu_s() - before[name] for name, group in groups.items()}
    # It has measured itself without its second of warming up.
    whole = (report["seconds"] + 1) / report["seconds"]
    used["generator"] = report["generator_cpu_s"] * whole
    messages = report["published"] * whole + len(times) if messages is None else target.messages() - messages
    report["log_bytes"] = None if log_bytes is None else (target.log_bytes() - log_bytes) / max(messages, 1)
    report["cpu_us"] = {name: cpu * 1e6 / max(messages, 1) for name, cpu in used.items()}
    return report


def rounds(options):
    targets = [Alone, Cluster]
    if options.rmqtt:
        targets.append(functools.partial(Rmqtt, options.rmqtt))
    cells = {}
    for number in range(options.rounds):
        for make in targets:
            target = make()
            try:
                for scenario in SCENARIOS:
                    report = measure(options.fulmar, target, scenario, options.seconds)
                    cells.setdefault((scenario, target.name), []).append(report)
                    print(f"round {number + 1}: {scenario}: {target.name}: {summary(report)}", file=sys.stderr, flush=True)
            finally:
                target.close()
    return cells


def summary(report):
    cpu = ", ".join(f"{name} {value:.1f}" for name, value in report["cpu_us"].items())
    return f"{report['delivered_per_s']:,.0f} msg/s, acknowledged after {report['acknowledged_ms']['0.5']:.2f} ms, CPU µs per message: {cpu}"


def table(cells):
    rows = [
        "| load, QoS 1, durable | | messages/s (range) | acknowledged after ms: p50 / p95 / p99 / worst | CPU µs per message: serving | other nodes |"
        " NATS servers | generator | log: B per message |", "|---|---|---|---|---|---|---|---|---|",
    ]
    for (scenario, name), reports in sorted(cells.items(), key=lambda cell: list(SCENARIOS).index(cell[0][0])):
        def middle(figure):
            return statistics.median(figure(report) for report in reports)

        rates = [report["delivered_per_s"] for report in reports]
        spread = f" ({min(rates):,.0f} to {max(rates):,.0f})" if len(rates) > 1 else ""
        times = " / ".join(f"{middle(lambda r, q=q: r['acknowledged_ms'][str(q)]):.2f}" for q in QUANTILES)
        parts = ["serving", "other nodes", "NATS servers", "generator"]
        cpu = [f"{middle(lambda r, p=p: r['cpu_us'][p]):.1f}" if p in reports[0]["cpu_us"] else "-" for p in parts]
        cpu.append("-" if reports[0]["log_bytes"] is None else f"{middle(lambda r: r['log_bytes']):.0f}")
        rows.append(f"| {scenario} | {name} | {statistics.median(rates):,.0f}{spread} | {times} | {' | '.join(cpu)} |")
    return "\n".join(rows)


def instructions(options):
    """Instructions per QoS 1 message, in user space: messages that share groups, and each alone in its own."""
    rows = ["| under valgrind, one worker, QoS 1, durable | | instructions per message (range) | × alone |", "|---|---|---|---|"]
    found = {}
    programs = {"alone": options.fulmar, "a node of a cluster": options.fulmar}
    if options.before:
        programs["alone, the program before"] = options.before
    for scenario, arguments in COUNTED.items():
        for name, program in programs.items():
            os.environ["FULMAR_BIN"] = str(program)
            counts = [counted(options.fulmar, "node" in name, arguments, options.seconds) for _ in range(options.rounds)]
            print(f"{scenario}: {name}: {statistics.median(counts):,.0f} instructions per message", file=sys.stderr, flush=True)
            found.setdefault(scenario, {})[name] = counts
        alone = statistics.median(found[scenario]["alone"])
        for name, counts in found[scenario].items():
            middle = statistics.median(counts)
            rows.append(f"| {scenario} | {name} | {middle:,.0f} ({min(counts):,.0f} to {max(counts):,.0f}) | {middle / alone:.2f} |")
    return "\n".join(rows), found


def counted(generator, cluster, arguments, seconds):
    with tempfile.TemporaryDirectory(prefix="fulmar-bench-") as folder:
        out = pathlib.Path(folder, "callgrind")
        prefix = [sys.executable, __file__, "--without-auxv", "valgrind", "--tool=callgrind", "--fair-sched=yes",
                  f"--callgrind-out-file={out}"]
        os.environ["FULMAR_SERVER__WORKERS"] = "1"
        target = Cluster(1, prefix) if cluster else Alone(prefix)
        try:
            pid = str(target.node.process.pid)
            before = target.messages()
            subprocess.run(["callgrind_control", "-z", pid], check=True, capture_output=True, timeout=120)
            load(generator, target.port, arguments, seconds)
            messages = target.messages() - before
            subprocess.run(["callgrind_control", "-d", pid], check=True, capture_output=True, timeout=120)
        finally:
            target.close()
        totals = [int(line.split()[1]) for file in pathlib.Path(folder).iterdir()
                  for line in file.read_text(errors="replace").splitlines() if line.startswith(("summary:", "totals:"))]
        return max(totals) / messages


def without_auxv(command):
    """Runs a command for which prctl(PR_GET_AUXV) fails: older valgrinds end at it."""
    load_word, jump_if, answer = 0x20, 0x15, 0x06
    prctl, get_auxv = 157, 0x41555856
    # struct seccomp_data: the system call's number at 0, its first argument at 16. x86-64 only.
    program = [(load_word, 0, 0, 0), (jump_if, 0, 3, prctl), (load_word, 0, 0, 16), (jump_if, 0, 1, get_auxv),
               (answer, 0, 0, 0x0005_0016), (answer, 0, 0, 0x7FFF_0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filter_, 0, 0):
        sys.exit("no seccomp filter")
    os.execvp(command[0], command)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fulmar", type=pathlib.Path, default=ROOT / "target/release/fulmar")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--rmqtt", type=pathlib.Path, help="a node of RMQTT's cluster: target/peers/bin/rmqtt-cluster")
    parser.add_argument("--before", type=pathlib.Path, help="another program, with --instructions")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench-results")
    return parser.parse_args()


def main():
    if sys.argv[1:2] == ["--without-auxv"]:
        without_auxv(sys.argv[2:])
    options = arguments()
    options.fulmar = options.fulmar.resolve()
    options.rmqtt = options.rmqtt and options.rmqtt.resolve()
    os.environ["FULMAR_BIN"] = str(options.fulmar)
    about = f"{os.cpu_count()} cores, Linux {platform.release()}, {datetime.datetime.now(datetime.timezone.utc):%F %T} UTC, " \
            f"load average {os.getloadavg()[0]:.1f}; {options.rounds} rounds of {options.seconds} s, 64 B payload, medians"
    if options.instructions:
        text, found = instructions(options)
        name = "cluster-instructions"
    else:
        cells = rounds(options)
        text, name = table(cells) + (f"\n\n{RMQTT_NOTE}" if options.rmqtt else ""), "cluster"
        found = [{"load": load, "target": target, "runs": runs} for (load, target), runs in cells.items()]
    print(f"{about}\n\n{text}")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.md").write_text(f"{about}\n\n{text}\n")
    (options.out / f"{name}.json").write_text(json.dumps({"about": about, "figures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
