#!/usr/bin/env python3
"""Compares MQTT brokers on this machine: `make bench`, or `make bench BENCH=short`.

Every broker runs alone on loopback, freshly started for each cell, without persistence. TCP is
plain; QUIC is always encrypted, so its rows compare only with each other. Rounds are interleaved
(A B C, A B C, ...) so that a busy neighbour disturbs all alike. The load comes from `fulmar bench`,
which knows nothing of the broker it talks to.

Read ratios, not absolute figures, and distrust a run on a busy machine: a broker that waits for a
core finds more work at once when it gets it, which flatters those that batch. The load average
before the cells is printed for that reason.

With --packaged PROGRAM (`make bench-packaged`), Fulmar as packages contain it is compared with Fulmar as cargo builds it,
and with nothing else.

Prints a Markdown table of medians with their spread and the ratio to mosquitto (QUIC: to RMQTT),
and writes it with every single figure as JSON to bench-results/. Standard library only.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
START_LIMIT_S = 20
STOP_LIMIT_S = 10
# The peers that ratios refer to, by transport, and those of packaged programs: whichever is there.
BASELINES = {"tcp": ["mosquitto"], "quic": ["rmqtt"]}
CARGO = ["fulmar", "fulmar-durable"]

# name: (arguments of fulmar bench, figure, unit, decimals, whether more is better)
SCENARIOS = {
    "pairs QoS 0": (["pairs", "-q", "0"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True),
    "pairs QoS 1": (["pairs", "-q", "1"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True),
    "pairs QoS 2": (["pairs", "-q", "2"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True),
    # Sessions that outlive the connection, on a broker that stores them before it acknowledges.
    "durable pairs QoS 1": (
        ["pairs", "-q", "1", "--persistent"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True
    ),
    "fan-out 1 to 500": (["fan-out"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True),
    "fan-in 5,000/s": (["fan-in"], "delivered_per_broker_cpu_s", "msg/CPU-s", 0, True),
    "idle connections": (["conns"], "kib_per_connection", "KiB each", 1, False),
}
SHORT = ["pairs QoS 0", "pairs QoS 1", "fan-in 5,000/s", "idle connections"]
SHORT_BROKERS = ["fulmar", "mosquitto", "rumqttd", "rmqtt"]


class Broker:
    """A broker that can be started: its command, and the transports it listens on."""

    def __init__(self, name, program, transports=("tcp",)):
        self.name = name
        self.program = program
        self.transports = transports

    def runs(self, transport, scenario):
        """Whether the scenario is for it."""
        return transport in self.transports and not scenario.startswith("durable")

    def available(self):
        return self.program is not None and os.access(self.program, os.X_OK)

    def command(self, folder, tcp, quic):
        """Command line and environment for listening on these ports."""
        raise NotImplementedError

    def version(self):
        raise NotImplementedError


class Fulmar(Broker):
    storage = "false"

    def command(self, folder, tcp, quic):
        keys = {
            "FULMAR_LISTENERS__MQTT": f'["127.0.0.1:{tcp}"]',
            "FULMAR_LISTENERS__QUIC": f'["127.0.0.1:{quic}"]',
            "FULMAR_STORAGE__ENABLED": self.storage,
        }
        for listener in ("MQTTS", "WS", "WSS", "HTTP"):
            keys[f"FULMAR_LISTENERS__{listener}"] = "[]"
        return [self.program, "serve", "--data", str(folder)], keys

    def version(self):
        return output([self.program, "--version"])


class DurableFulmar(Fulmar):
    """With its storage on. No peer stores a message before it acknowledges it, so none is beside it."""

    storage = "true"

    def runs(self, transport, scenario):
        return transport in self.transports and scenario.startswith("durable")


class Mosquitto(Broker):
    def command(self, folder, tcp, quic):
        lines = [
            f"listener {tcp} 127.0.0.1",
            "allow_anonymous true",
            "persistence false",
            "set_tcp_nodelay true",
            "log_type error",
            # mosquitto gives root up for a user that may not read a temporary folder.
            "user root" if os.geteuid() == 0 else "",
        ]
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
        return [self.program, "-c", str(folder / "mosquitto.conf")], {}

    def version(self):
        return output([self.program, "-h"]).splitlines()[0]


class Rumqttd(Broker):
    def command(self, folder, tcp, quic):
        return [self.program, f"127.0.0.1:{tcp}"], {}

    def version(self):
        return "rumqttd " + locked("rumqttd")


class Rmqtt(Broker):
    certificate = None

    def command(self, folder, tcp, quic):
        certificate, key = self.certificate
        return [self.program, f"127.0.0.1:{tcp}", f"127.0.0.1:{quic}", certificate, key], {}

    def version(self):
        return "rmqtt " + locked("rmqtt")


class Mochi(Broker):
    def command(self, folder, tcp, quic):
        return [self.program, "-tcp", f"127.0.0.1:{tcp}"], {}

    def version(self):
        for line in (ROOT / "benches/peers/mochi/go.mod").read_text().splitlines():
            if "mochi-mqtt/server" in line:
                return "mochi " + line.split()[-1]
        return "mochi"


def output(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return (done.stdout or done.stderr).strip()


def locked(package):
    """Version of a package in the peers' Cargo.lock."""
    lines = (ROOT / "benches/peers/Cargo.lock").read_text().splitlines()
    at = lines.index(f'name = "{package}"')
    return lines[at + 1].split('"')[1]


def free_ports():
    """A free TCP and a free UDP port of loopback."""
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        return tcp.getsockname()[1], udp.getsockname()[1]


def wait_until_listening(process, port):
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"ended with {process.returncode} while starting")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("did not listen in time")


def stop(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure(generator, broker, transport, arguments, seconds):
    """One cell: starts the broker, runs the scenario, stops the broker; the generator's report."""
    with tempfile.TemporaryDirectory(prefix="fulmar-bench-") as folder:
        tcp, quic = free_ports()
        command, keys = broker.command(pathlib.Path(folder), tcp, quic)
        with open(pathlib.Path(folder) / "log", "w+b") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **keys}, stdout=log, stderr=log, cwd=folder
            )
            try:
                wait_until_listening(process, tcp)
                url = f"mqtt://127.0.0.1:{tcp}" if transport == "tcp" else f"quic://127.0.0.1:{quic}"
                load = [generator, "bench", *arguments, url, "--json", "--pid", str(process.pid)]
                load += ["--seconds", str(seconds)]
                load += ["--insecure"] if transport == "quic" else []
                done = subprocess.run(load, capture_output=True, text=True, timeout=120, check=False)
            finally:
                stop(process)
            if done.returncode != 0:
                raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
            return json.loads(done.stdout)


def machine():
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "load_at_start": os.getloadavg()[0],
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def run_rounds(generator, brokers, cells, rounds, seconds):
    """All measurements: (transport, scenario, broker) to its list of reports."""
    reports = {}
    for number in range(1, rounds + 1):
        for transport, scenario, arguments in cells:
            for broker in brokers:
                if not broker.runs(transport, scenario):
                    continue
                label = f"round {number}/{rounds}: {transport} {scenario}: {broker.name}"
                load = os.getloadavg()[0]
                try:
                    report = measure(generator, broker, transport, arguments, seconds)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(f"{label}: FAILED: {error}", file=sys.stderr)
                    continue
                report["load_before"] = load
                reports.setdefault((transport, scenario, broker.name), []).append(report)
                print(f"{label}: {summary(scenario, report)}", file=sys.stderr)
    return reports


def summary(scenario, report):
    _, figure, unit, decimals, _ = SCENARIOS[scenario]
    text = f"{report[figure]:,.{decimals}f} {unit}"
    if "p50_ms" in report:
        text += f", {report['delivered_per_s']:,.0f} msg/s, p50 {report['p50_ms']:.2f} ms"
    return text


def table(reports, names, packaged):
    """Markdown rows; one per transport, scenario and broker."""
    rows = [
        "| transport, scenario | broker | msg per broker CPU-s or KiB per connection (range)"
        f" | {'× cargo' if packaged else '× mosquitto (QUIC: × rmqtt)'} | msg/s | p50 / p99 ms | RSS MiB | generator CPU / broker CPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (transport, scenario), group in grouped(reports).items():
        _, figure, unit, decimals, more_is_better = SCENARIOS[scenario]
        references = CARGO if packaged else BASELINES[transport]
        base = next((group[name] for name in references if name in group), None)
        base = statistics.median(report[figure] for report in base) if base else None
        for name in (name for name in names if name in group):
            runs = group[name]
            values = [report[figure] for report in runs]
            middle = statistics.median(values)
            ratio = "-"
            if base and middle > 0:
                ratio = f"{middle / base if more_is_better else base / middle:.2f}"
            spread = f" ({min(values):,.{decimals}f} to {max(values):,.{decimals}f})"
            figure_cell = f"{middle:,.{decimals}f} {unit}" + (spread if len(values) > 1 else "")
            cells = [f"{transport} {scenario}", name, figure_cell]
            rows.append("| " + " | ".join([*cells, ratio, *details(runs)]) + " |")
    return "\n".join(rows)


def grouped(reports):
    groups = {}
    for (transport, scenario, name), runs in reports.items():
        groups.setdefault((transport, scenario), {})[name] = runs
    return groups


def details(runs):
    def middle(key):
        return statistics.median(report[key] for report in runs)

    if "delivered_per_s" not in runs[0]:
        return [f"{middle('connects_per_s'):,.0f} connects/s", "-", "-", "-"]
    used = middle("generator_cpu_s") / max(middle("broker_cpu_s"), 0.01)
    # The generator worked harder than the broker: its rate may be the generator's limit.
    flag = " ‡" if any(report["generator_heavier"] for report in runs) else ""
    lost = sum(report["lost"] for report in runs)
    return [
        f"{middle('delivered_per_s'):,.0f}" + (f" ({lost} never arrived)" if lost else ""),
        f"{middle('p50_ms'):.2f} / {middle('p99_ms'):.2f}",
        f"{middle('broker_rss_kib') / 1024:,.0f}",
        f"{used:.2f}{flag}",
    ]


def whole(path):
    """A path that holds in other folders too: brokers run in folders of their own."""
    return pathlib.Path(path).resolve()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="one quick round, for CI")
    parser.add_argument("--rounds", type=int, help="rounds [default: 3; 1 with --short]")
    parser.add_argument("--seconds", type=int, help="seconds a cell [default: 3; 1 with --short]")
    parser.add_argument("--brokers", help="comma-separated names [default: all that are there]")
    parser.add_argument("--only", help="only scenarios whose name contains this")
    parser.add_argument("--transport", choices=["tcp", "quic"], help="only this transport")
    parser.add_argument("--peers", type=whole, default=ROOT / "target/peers/bin")
    parser.add_argument("--fulmar", type=whole, default=ROOT / "target/release/fulmar")
    parser.add_argument("--packaged", type=whole, help="compare this program with --fulmar, and no peers")
    parser.add_argument("--generator", type=whole, help="fulmar to make the load with [default: --fulmar]")
    parser.add_argument("--out", type=whole, default=ROOT / "bench-results")
    return parser.parse_args()


def choose(options):
    """Brokers that are there and wanted."""
    sbin = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
    every = [
        Fulmar("fulmar", options.fulmar, ("tcp", "quic")),
        DurableFulmar("fulmar-durable", options.fulmar, ("tcp", "quic")),
        Fulmar("packaged", options.packaged, ("tcp", "quic")),
        DurableFulmar("packaged-durable", options.packaged, ("tcp", "quic")),
        Mosquitto("mosquitto", shutil.which("mosquitto", path=sbin)),
        Rumqttd("rumqttd", str(options.peers / "rumqttd")),
        Mochi("mochi", str(options.peers / "mochi")),
        Rmqtt("rmqtt", str(options.peers / "rmqtt"), ("tcp", "quic")),
    ]
    wanted = SHORT_BROKERS if options.short else [broker.name for broker in every if broker.program != options.packaged]
    if options.packaged:
        wanted = [*CARGO, "packaged", "packaged-durable"]
    if options.brokers:
        wanted = options.brokers.split(",")
    for broker in every:
        if broker.name in wanted and not broker.available():
            print(f"compare: {broker.name} is not there, left out", file=sys.stderr)
    return [broker for broker in every if broker.name in wanted and broker.available()]


def choose_cells(options):
    cells = []
    for transport in ("tcp", "quic"):
        if options.transport not in (None, transport):
            continue
        for scenario in SHORT if options.short else SCENARIOS:
            if options.only and options.only not in scenario:
                continue
            load = list(SCENARIOS[scenario][0])
            if load[0] == "conns":
                # Fewer over QUIC: its handshakes cost the generator as much as the broker.
                full = 10_000 if transport == "tcp" else 5_000
                load += ["-n", "1000" if options.short else str(full)]
            cells.append((transport, scenario, load))
    return cells


def main():
    options = arguments()
    rounds = options.rounds or (1 if options.short else 3)
    seconds = options.seconds or (1 if options.short else 3)
    generator = options.generator or options.fulmar
    brokers = choose(options)
    with tempfile.TemporaryDirectory(prefix="fulmar-bench-") as folder:
        Rmqtt.certificate = issue_certificate(generator, pathlib.Path(folder))
        about = machine()
        reports = run_rounds(generator, brokers, choose_cells(options), rounds, seconds)
    if not reports:
        sys.exit("compare: nothing was measured")
    versions = {broker.name: broker.version() for broker in brokers}
    loads = [report["load_before"] for runs in reports.values() for report in runs]
    text = "\n".join(
        [
            f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, {about['time']};"
            f" {rounds} rounds of {seconds} s, 64 B payload, loopback, no persistence except where it says durable; medians.",
            "TCP is plain, QUIC encrypted. ‡: the generator used more CPU than the broker."
            f" Load average before the cells: median {statistics.median(loads):.1f},"
            f" {max(loads):.1f} at most.",
            ", ".join(versions.values()),
            "",
            table(reports, [broker.name for broker in brokers], options.packaged),
        ]
    )
    print(text)
    save(options.out, about, versions, reports, text)


def issue_certificate(generator, folder):
    """Certificate and key for peers with QUIC, from Fulmar's development authority."""
    command = [generator, "cert", "issue", "localhost", "--san", "127.0.0.1"]
    command += ["--dir", str(folder / "ca"), "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=20)
    return str(folder / "localhost.pem"), str(folder / "localhost.key")


def save(folder, about, versions, reports, text):
    folder.mkdir(parents=True, exist_ok=True)
    cells = [
        {"transport": transport, "scenario": scenario, "broker": name, "runs": runs}
        for (transport, scenario, name), runs in reports.items()
    ]
    result = {"machine": about, "versions": versions, "cells": cells}
    (folder / "latest.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / "latest.md").write_text(text + "\n")
    print(f"\nwritten to {folder}/latest.md and latest.json", file=sys.stderr)


if __name__ == "__main__":
    main()
