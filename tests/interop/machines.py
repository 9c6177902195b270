"""Three machines of a cluster and a clients' host, each in network namespaces of their own, whose links can be cut.

    clients --front-- node 1..3 --middle-- server 1..3 --back-- the other servers
                         +----------bus----------+

Node and server of a machine are joined by a bus, which a cut of the machine's network leaves. The process that makes
this moves to the clients' host, with the threads and programs that it starts from then on.
"""

import ctypes
import os
import subprocess

from namespaces import PREFIX, ip, need_namespaces, remove_leftovers

COUNT = 3
FRONT, MIDDLE, BACK, BUS = "front", "middle", "back", "bus"
NETWORKS = {FRONT: "10.71.0", MIDDLE: "10.72.0", BACK: "10.73.0"}
CLIENTS = 100
CLONE_NEWNET = 0x40000000


class Machine:
    """A machine's two hosts and their addresses."""

    def __init__(self, index):
        self.index = index
        self.node, self.server = f"node{index}", f"server{index}"
        self.front, self.middle, self.back = (f"{network}.{index + 1}" for network in NETWORKS.values())
        self.middle_of_server = f"{NETWORKS[MIDDLE]}.{index + 11}"
        self.bus_of_node, self.bus_of_server = f"10.74.{index}.1", f"10.74.{index}.2"


class Machines:
    """`cut` and `mend` change links; `close` removes everything."""

    def __init__(self):
        need_namespaces()
        remove_leftovers()
        self.all = [Machine(index) for index in range(COUNT)]
        hosts = ["switch", "clients", *(host for machine in self.all for host in (machine.node, machine.server))]
        self.names = {host: f"{PREFIX}{os.getpid()}-{host}" for host in hosts}
        self.cuts = []
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            self.build()
            self.enter()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, index):
        return self.all[index]

    def __iter__(self):
        return iter(self.all)

    def build(self):
        for name in self.names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for network in NETWORKS:
            ip("-n", self.names["switch"], "link", "add", "name", network, "type", "bridge")
            ip("-n", self.names["switch"], "link", "set", network, "up")
        for network in (FRONT, MIDDLE):
            self.plug("clients", network, f"{NETWORKS[network]}.{CLIENTS}")
        for machine in self.all:
            self.plug(machine.node, FRONT, machine.front)
            self.plug(machine.node, MIDDLE, machine.middle)
            self.plug(machine.server, MIDDLE, machine.middle_of_server)
            self.plug(machine.server, BACK, machine.back)
            node, server = self.names[machine.node], self.names[machine.server]
            ip("-n", node, "link", "add", "name", BUS, "type", "veth", "peer", "name", BUS, "netns", server)
            for name, address in ((node, machine.bus_of_node), (server, machine.bus_of_server)):
                ip("-n", name, "address", "add", f"{address}/24", "dev", BUS)
                ip("-n", name, "link", "set", BUS, "up")

    def plug(self, host, network, address):
        name, switch, port = self.names[host], self.names["switch"], self.port(host, network)
        ip("-n", name, "link", "add", "name", network, "type", "veth", "peer", "name", port, "netns", switch)
        ip("-n", switch, "link", "set", port, "master", network)
        ip("-n", switch, "link", "set", port, "up")
        ip("-n", name, "address", "add", f"{address}/24", "dev", network)
        ip("-n", name, "link", "set", network, "up")

    @staticmethod
    def port(host, network):
        """The switch's end of a link; the kernel allows 15 characters."""
        return f"{host}-{network}"

    def enter(self):
        with open(f"/run/netns/{self.names['clients']}", "rb") as namespace:
            set_namespace(namespace.fileno())

    def inside(self, host):
        """What a command begins with to run on this host; its process id stays the command's."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self, *links):
        """Takes links, as (host, network), down."""
        for host, network in links:
            ip("-n", self.names[host], "link", "set", network, "down")
            self.cuts.append(("link", host, network))

    def deafen(self, *links, sends=False):
        """What is sent to a host on these links gets lost, or with `sends` what it sends; the other way works."""
        for host, network in links:
            where, device = self.names[host], network
            if not sends and network == BUS:
                # The other end is the other host of the machine.
                other = {"node": "server", "server": "node"}[host[:-1]] + host[-1]
                where = self.names[other]
            elif not sends:
                where, device = self.names["switch"], self.port(host, network)
            quietly(where, "add", device)
            self.cuts.append(("qdisc", where, device))

    def cut_machine(self, machine):
        self.cut((machine.node, FRONT), (machine.node, MIDDLE), (machine.server, MIDDLE), (machine.server, BACK))

    def mend(self):
        """Ends all cuts."""
        while self.cuts:
            kind, where, device = self.cuts.pop()
            if kind == "link":
                ip("-n", self.names[where], "link", "set", device, "up")
            else:
                quietly(where, "delete", device)

    def close(self):
        set_namespace(self.home)
        os.close(self.home)
        for name in self.names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def quietly(namespace, action, device):
    """A queue that loses everything, at the end of a device."""
    subprocess.run(["tc", "-n", namespace, "qdisc", action, "dev", device, "root", "blackhole"], check=True,
                   capture_output=True)


def set_namespace(file):
    """For this thread, and those that it starts."""
    if ctypes.CDLL(None, use_errno=True).setns(file, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")
