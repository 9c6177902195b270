"""Ports for programs that are told theirs, and for brokers that come back on the same ones.

A port that was only found free, or whose broker is down for a moment, may be given to another test's program
meanwhile. These lie below those the system gives out (from 32768 on Linux), in a block that is this process's as
long as it runs.
"""

import functools
import itertools
import pathlib
import re
import socket

FIRST, LAST = 20_000, 32_000
BLOCK = 500


@functools.cache
def block():
    """The ports of a block that no other test process has, again and again, and what holds it."""
    for first in range(FIRST, LAST, BLOCK):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            # An abstract address: only one process has it, and it goes with the process.
            lock.bind(f"\0fulmar-test-ports-{first}")
        except OSError:
            lock.close()
            continue
        return itertools.cycle(range(first, first + BLOCK)), lock
    raise RuntimeError("too many test processes at once, or all of their ports are held")


def is_free(port: int) -> bool:
    """For TCP and UDP, whatever else this machine runs."""
    try:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with socket.socket(socket.AF_INET, kind) as probe:
                # Connections that have ended are in nobody's way.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind == socket.SOCK_STREAM))
                probe.bind(("0.0.0.0", port))
    except OSError:
        return False
    return True


def take(count: int) -> list[int]:
    """So many ports in a row."""
    ports, _ = block()
    taken = []
    # Twice round: longer there is no use in looking.
    for port in itertools.islice(ports, 2 * BLOCK):
        if not is_free(port) or (taken and port != taken[-1] + 1):
            taken = []
            continue
        taken.append(port)
        if len(taken) == count:
            return taken
    raise RuntimeError(f"no {count} free ports from {FIRST} to {LAST}")


@functools.cache
def defaults() -> frozenset[int]:
    """Those that a program has that somebody runs beside the tests."""
    example = pathlib.Path(__file__).resolve().parents[2] / "fulmar.example.toml"
    found = re.findall(r'(?m)^\w+ = \["127\.0\.0\.1:([1-9]\d*)"(?:, "\[::1\]:\1")?\]$', example.read_text(encoding="utf-8"))
    return frozenset(map(int, found))
