#!/usr/bin/env python3
"""What three machines carry as a cluster, computed from measured costs: `benches/cluster_capacity.py [INPUTS]`.

The inputs (cluster_capacity.toml) are ranges with their sources, and so are the results: the low end combines the worst
of everything, the high end the best. Each result names the resource that ends first. Two stages: one node serves, as
today; and the design's next one, with cells on all nodes, links between them, and routes.

It knows no waiting times in queues, and is no promise: it shows which resource to look at."""

import argparse
import pathlib
import sys
import tomllib

MACHINES = 3
INPUTS = pathlib.Path(__file__).with_suffix(".toml")
LOADS = {"busy": "many messages at once", "sparse": "each message alone"}


class Inputs:
    """Reads `[section.name] range = [low, high], source = "…"`. Capacities are best when high, costs when low."""

    def __init__(self, text):
        self.values = tomllib.loads(text)
        for section, values in self.values.items():
            for name, value in values.items():
                low, high = value.get("range", (1, 0))
                if not 0 <= low <= high or not value.get("source"):
                    raise ValueError(f"[{section}.{name}] needs range = [low, high] and source")

    def most(self, name, best):
        """A capacity."""
        section, key = name.split(".")
        return self.values[section][key]["range"][best]

    def cost(self, name, best):
        return self.most(name, not best)


def messages_today(inputs, load, best):
    """Limits in messages per second while one node serves, by resource."""
    cores = inputs.most("machine.cores", best) * inputs.most("machine.usable", best)
    node, server = inputs.cost(f"{load}.serving_us", best), inputs.cost(f"{load}.server_us", best)
    size = inputs.cost(f"{load}.log_bytes", best)
    appends = 1000 / inputs.cost("append.ms", best)
    return {
        # The server beside the node that serves has the same processors.
        "processors of the machine that serves": cores * 1e6 / (node + server),
        "appends of one log, one at a time": appends * inputs.most("append.record_bytes", best) / size,
        "disk of each NATS server": inputs.most("machine.disk_mb_per_s", best) * 1e6 / size,
        # The leader sends each record to two others, and to the nodes that stand by.
        "network of the log's leader": inputs.most("machine.network_mb_per_s", best) * 1e6 / (4 * size),
    }


def messages_next(inputs, load, best):
    """The same with cells on all three: a message goes from its publisher's cell to one other, if that is another."""
    cores = inputs.most("machine.cores", best) * inputs.most("machine.usable", best) * MACHINES
    cells = inputs.most("next.cells", best)
    idle = inputs.cost("next.idle_stream_cores", best) * cells
    elsewhere = 1 - 1 / cells
    link = inputs.cost("next.link_us", best) / inputs.most("next.link_batch", best and load == "busy")
    # Two of three clients are not at the node of their cell.
    spliced = inputs.cost("next.splice_us", best) * 2 * (1 - 1 / MACHINES)
    copies = 1 + elsewhere
    node = inputs.cost(f"{load}.serving_us", best) + elsewhere * link + spliced
    behind = inputs.cost(f"{load}.standing_by_us", best) * copies
    servers = MACHINES * inputs.cost(f"{load}.server_us", best) * copies
    size = inputs.cost(f"{load}.log_bytes", best) * copies
    appends = cells * 1000 / inputs.cost("append.ms", best)
    return {
        "processors of all machines": (cores - idle) * 1e6 / (node + behind + servers),
        "appends of all logs": appends * inputs.most("append.record_bytes", best) / size,
        # Three servers, three replicas: each disk has every record.
        "disk of each NATS server": inputs.most("machine.disk_mb_per_s", best) * 1e6 / size,
        "network of a machine": inputs.most("machine.network_mb_per_s", best) * 1e6 * MACHINES / (4 * size),
    }


def sessions(inputs, best, machines, route_bytes=0):
    """Connected sessions that fit the memory, on so many machines; all on one fewer when one dies."""
    memory = inputs.most("machine.memory_gib", best) * 2**30 * inputs.most("machine.usable", best)
    each = inputs.cost("sessions.kib", best) * 1024
    return {"memory": max(memory - route_bytes, 0) * max(machines - 1, 1) / each}


def take_over_s(inputs, best, queued_millions, with_server):
    """Until another node serves, without the clients' own time to return."""
    waits = inputs.cost("take_over.lease_s", best)
    if with_server:
        # The elections run while the lease ends; at worst its holder then has the first turn.
        election = inputs.cost("take_over.election_s", best)
        waits = max(waits, election + (0 if best else inputs.cost("take_over.turn_s", best)))
    claim = inputs.cost("append.ms", best) / 1000
    return waits + claim + queued_millions * inputs.cost("take_over.restore_s_per_million", best)


def control(inputs, best, changes_per_s):
    """Share of one core of each server for leases and changed routes, and the limit of changes per second."""
    renewals = MACHINES * 2 * inputs.cost("control.renewals_per_node_s", best)
    used = (renewals + changes_per_s) * inputs.cost("control.change_us", best) / 1e6
    return used, inputs.most("control.changes_per_s", best) - renewals


def first_end(limits):
    name = min(limits, key=limits.get)
    return limits[name], name


def both(compute):
    """(low, high) of a result."""
    return compute(False), compute(True)


def shown(value):
    digits = max(len(str(int(value))) - 2, 0)
    return f"{round(value, -digits):,.0f}"


def line(what, low, high):
    ends = low[1] if low[1] == high[1] else f"{low[1]} (low), {high[1]} (high)"
    return f"| {what} | {shown(low[0])} to {shown(high[0])} | {ends} |"


def report(inputs):
    rows = ["| | range | ends first |", "|---|---|---|"]
    stages = {"one node serves": messages_today, "next stage: cells on three nodes": messages_next}
    for stage, messages in stages.items():
        for load, words in LOADS.items():
            low, high = both(lambda best: first_end(messages(inputs, load, best)))
            rows.append(line(f"{stage}: QoS 1 messages/s, {words}", low, high))
        today = messages is messages_today
        machines = 1 if today else MACHINES

        def routes(best):
            return 0 if today else inputs.cost("next.routes", best) * inputs.cost("next.route_bytes", best)

        low, high = both(lambda best: first_end(sessions(inputs, best, machines, routes(best))))
        rows.append(line(f"{stage}: sessions", low, high))
    for with_server, words in ((False, "a node"), (True, "a node with its server")):
        low, high = both(lambda best: take_over_s(inputs, best, 1, with_server))
        rows.append(f"| take-over after the death of {words}, a million queued | {high:.1f} to {low:.1f} s | |")
    low, high = both(lambda best: 1e6 / (inputs.most("sessions.connects_per_s", best)))
    rows.append(f"| until a million clients have returned to one node, plain TCP | {high:.0f} to {low:.0f} s | processors |")
    low, high = both(lambda best: control(inputs, best, 0)[0])
    rows.append(f"| leases: share of a core per NATS server | {high:.2%} to {low:.2%} | |")
    low, high = both(lambda best: control(inputs, best, 0)[1])
    rows.append(f"| next stage: changed routes/s | {shown(low)} to {shown(high)} | key-value bucket of routes |")
    return "\n".join(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("inputs", nargs="?", type=pathlib.Path, default=INPUTS)
    try:
        print(report(Inputs(parser.parse_args().inputs.read_text())))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"cluster_capacity: {error}")


if __name__ == "__main__":
    main()
