"""Reads the log of a cluster, as bytes, from the NATS servers, and checks what a reader relies on: numbers without gaps,
each record with the checksum of the one before, and nothing of an older epoch behind a claim."""

import collections
import datetime
import json
import re
import socket
import struct
import zlib

HEADER = struct.Struct("<BQQIB")
CLAIM = 2
BATCH = 256


class Claim:
    """A node's claim of the log, with the time at which the servers stored it, in seconds since the Unix epoch."""

    def __init__(self, epoch, number, node, at):
        self.epoch, self.number, self.node, self.at = epoch, number, node, at

    def __repr__(self):
        return f"epoch {self.epoch} of {self.node} at record {self.number}"


class Log:
    """What is in the log: `claims`, `records` and `bytes`, `faults` as lines, and which of the tokens `pattern` finds."""

    def __init__(self, address, first, last, pattern):
        self.claims, self.faults, self.found = [], [], set()
        self.records = self.bytes = 0
        self.by_epoch = collections.Counter()
        self.epoch, self.checksum, self.number = 0, None, first - 1
        token = re.compile(pattern)
        for number, at, record in read(address, first, last):
            self.check(number, at, record)
            self.found.update(token.findall(record))

    def check(self, number, at, record):
        self.records += 1
        self.bytes += len(record)
        if number != self.number + 1:
            self.faults.append(f"record {number} follows {self.number}")
        self.number = number
        checksum = int.from_bytes(record[-4:], "little")
        if zlib.crc32(record[:-4]) != checksum:
            self.faults.append(f"record {number} is damaged")
            return
        _, epoch, own, before, kind = HEADER.unpack_from(record)
        self.by_epoch[epoch] += 1
        if own != number:
            self.faults.append(f"record {number} says that it is {own}")
        if self.checksum is not None and before != self.checksum:
            self.faults.append(f"record {number} does not continue the one before")
        self.checksum = checksum
        if kind == CLAIM:
            node = record[HEADER.size + 8:-4].decode()
            self.claims.append(Claim(epoch, number, node, at))
            if epoch <= self.epoch:
                self.faults.append(f"record {number} claims epoch {epoch} behind epoch {self.epoch}")
        elif self.epoch and epoch != self.epoch:
            # Void if the epoch is older. It must not even be there: its append was accepted, and so acknowledged.
            self.faults.append(f"record {number} of epoch {epoch} is behind the claim of epoch {self.epoch}")
        self.epoch = epoch


def read(address, first, last):
    """Records as number, time and bytes."""
    with socket.create_connection(address, 10) as connection:
        connection.sendall(b'CONNECT {"headers":true,"no_responders":true}\r\nSUB answer 1\r\n')
        lines = connection.makefile("rb")
        while first <= last:
            request = json.dumps({"seq": first, "batch": BATCH, "max_bytes": 4 << 20, "next_by_subj": "fulmar.log"})
            connection.sendall(f"PUB $JS.API.DIRECT.GET.FULMAR_LOG answer {len(request)}\r\n{request}\r\n".encode())
            for line in lines:
                if line.startswith(b"PING"):
                    connection.sendall(b"PONG\r\n")
                if not line.startswith(b"HMSG answer "):
                    continue
                header, total = map(int, line.split()[-2:])
                message = lines.read(total)
                head, record = message[:header].decode(), message[header:]
                if not record:
                    break
                fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
                number = int(fields["Nats-Sequence"])
                if number <= last:
                    yield number, seconds(fields["Nats-Time-Stamp"]), record
                first = number + 1


def seconds(stamp):
    """Seconds since the Unix epoch of a time such as 2026-11-28T00:00:00.123456789Z."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    at = datetime.datetime.fromisoformat(whole + "+00:00").timestamp()
    return at + float(f"0.{fraction or 0}")
