"""A network of the tests' own: a client's host, a router and the broker's host, each a network namespace.

    client 10.66.1.2 -- 10.66.1.1 router 10.66.2.1 -- 10.66.2.2 broker

Names carry the process id, so that runs do not meet; what a killed run left behind goes at the next start.
"""

import os
import pathlib
import re
import subprocess
import unittest

BROKER = "10.66.2.2"
# Another address of the broker's host, which it gets later.
ELSEWHERE = "10.66.5.2"
ROUTER_INSIDE = "10.66.1.1"
ROUTER_OUTSIDE = ["10.66.2.1", "10.66.2.3"]
CLIENT = "10.66.1.2"
PREFIX = "fulmar-test-"


def ip(*words: str):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        refused = re.search("not permitted|denied|not supported", done.stderr)
        raise (PermissionError if refused else OSError)(f"ip {' '.join(words)}: {done.stderr.strip()}")


def remove_leftovers():
    """Namespaces of test processes that are no more."""
    folder = pathlib.Path("/run/netns")
    for name in os.listdir(folder) if folder.is_dir() else []:
        if name.startswith(PREFIX) and not pathlib.Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists():
            subprocess.run(["ip", "netns", "delete", name], check=False)


def need_namespaces():
    """Skips the test, with the reason, where this machine does not let us make namespaces."""
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "name", "wire0", "type", "veth", "peer", "name", "wire1")
        finally:
            ip("netns", "delete", name)
    except (PermissionError, FileNotFoundError) as error:
        raise unittest.SkipTest(f"no network namespaces here, which need root and iproute2: {error}") from error


class Site:
    """The three hosts. `close` removes them."""

    def __init__(self):
        need_namespaces()
        remove_leftovers()
        self.names = {host: f"{PREFIX}{os.getpid()}-{host}" for host in ("client", "router", "broker")}
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def build(self):
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for host in ("client", "broker"):
            peer = ["peer", "name", host, "netns", self.names["router"]]
            ip("-n", self.names[host], "link", "add", "name", "wire", "type", "veth", *peer)
            self.up(host, "wire")
            self.up("router", host)
        self.address("client", "wire", CLIENT)
        self.address("router", "client", ROUTER_INSIDE)
        for outside in ROUTER_OUTSIDE:
            self.address("router", "broker", outside)
        self.address("broker", "wire", BROKER)
        self.route("client", ROUTER_INSIDE)
        self.route("broker", ROUTER_OUTSIDE[0])
        self.write("router", "/proc/sys/net/ipv4/ip_forward", "1")
        # So that nothing is asked, or answered, on the wire of the broker's host but what programs say: the
        # kernel would look again for a neighbour it has not heard of for half a minute.
        for asking, device, peer, its, address in (
            ("broker", "wire", "router", "broker", ROUTER_OUTSIDE[0]),
            ("router", "broker", "broker", "wire", BROKER),
        ):
            known = ["lladdr", self.ask(peer, "cat", f"/sys/class/net/{its}/address").strip(), "nud", "permanent"]
            ip("-n", self.names[asking], "neighbour", "replace", address, "dev", device, *known)

    def up(self, host: str, device: str):
        # Without IPv6 nothing is sent on a link that nobody asked for.
        self.write(host, f"/proc/sys/net/ipv6/conf/{device}/disable_ipv6", "1")
        ip("-n", self.names[host], "link", "set", device, "up")

    def down(self, host: str, device: str):
        ip("-n", self.names[host], "link", "set", device, "down")

    def address(self, host: str, device: str, address: str, action="add"):
        ip("-n", self.names[host], "address", action, f"{address}/24", "dev", device)

    def route(self, host: str, gateway: str):
        ip("-n", self.names[host], "route", "replace", "default", "via", gateway)

    def inside(self, host: str, *command: str) -> list[str]:
        """The command as one that runs on this host; its process id stays the command's."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def ask(self, host: str, *command: str) -> str:
        """What a command prints that runs on this host."""
        return subprocess.run(self.inside(host, *command), check=True, capture_output=True, text=True).stdout

    def write(self, host: str, path: str, value: str):
        try:
            self.ask(host, "sh", "-c", f"[ ! -e {path} ] || echo {value} > {path}")
        except subprocess.CalledProcessError as error:
            raise unittest.SkipTest(f"{path} cannot be set here: {error.stderr.strip()}") from error

    def packets_sent(self, host: str) -> int:
        """Packets that left this host over its wire, ever; those of its loopback not counted."""
        lines = self.ask(host, "cat", "/proc/net/dev").splitlines()
        return int(next(line for line in lines if line.strip().startswith("wire:")).split()[10])

    def close(self):
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
