"""NRL's NORM library as a sender or receiver of one file, for experiments that set Fulmar's beside it.

    nrl_norm.py check                                     ends well where the library is installed
    nrl_norm.py receive ADDRESS PORT FILE [NAME=VALUE…]   receives one file, tells so, and ends
    nrl_norm.py send ADDRESS PORT FILE [NAME=VALUE…]      sends one file, and goes on until it is ended

ADDRESS is the receiver's or a group's. Values: node, interface; of senders rate (bits/s), grtt (s), backoff, group
(receivers), lost (the link's losses in per cent, for which the best settings found are taken), cc=1 (its own congestion
control). What is told are JSON objects, a line each. The library is called through its C interface (Debian: libnorm-dev)."""

import ctypes
import ctypes.util
import json
import os
import sys
import tempfile
import time

BUFFER_BYTES = 64 << 20
SOCKET_BYTES = 4 << 20
SEGMENT_BYTES = 1400
BLOCK = 64
ROBUST = 20
SYNC_ALL = 2
TRACK_RECEIVERS = 1
# Of the library's events.
OBJECT_COMPLETED = 20


class Event(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("session", ctypes.c_void_p),
        ("sender", ctypes.c_void_p),
        ("object", ctypes.c_void_p),
    ]


def library():
    """The library, or None where it is not installed."""
    name = ctypes.util.find_library("norm")
    if not name:
        return None
    norm = ctypes.CDLL(name)
    for function in ("NormCreateInstance", "NormCreateSession", "NormFileEnqueue"):
        getattr(norm, function).restype = ctypes.c_void_p
    return norm


def tell(event, **more):
    print(json.dumps({"event": event, "at_ns": time.monotonic_ns(), **more}), flush=True)


def events(norm, instance):
    event = Event()
    while norm.NormGetNextEvent(instance, ctypes.byref(event), True):
        yield event.type, ctypes.c_void_p(event.object)


def session(norm, address, port, values):
    instance = ctypes.c_void_p(norm.NormCreateInstance(False))
    node = int(values.get("node", os.getpid()))
    here = ctypes.c_void_p(norm.NormCreateSession(instance, address.encode(), int(port), node))
    if "interface" in values:
        norm.NormSetMulticastInterface(here, values["interface"].encode())
    return instance, here


def receive(norm, address, port, file, values):
    instance, here = session(norm, address, port, values)
    folder = tempfile.mkdtemp(dir=os.path.dirname(file))
    norm.NormSetCacheDirectory(instance, folder.encode())
    norm.NormSetDefaultUnicastNack(here, True)
    norm.NormSetDefaultSyncPolicy(here, SYNC_ALL)
    norm.NormSetRxPortReuse(here, True, None, None, 0)
    if not norm.NormStartReceiver(here, BUFFER_BYTES):
        sys.exit("cannot receive")
    norm.NormSetRxSocketBuffer(here, SOCKET_BYTES)
    tell("ready")
    for kind, which in events(norm, instance):
        if kind == OBJECT_COMPLETED:
            name = ctypes.create_string_buffer(1000)
            norm.NormFileGetName(which, name, 1000)
            tell("file")
            os.rename(name.value.decode(), file)
            # Time for the sender to hear that this one has all; it may need to be told again.
            time.sleep(1)
            os.rmdir(folder)
            tell("used", cpu_s=sum(os.times()[:2]))
            return


def send(norm, address, port, file, values):
    instance, here = session(norm, address, port, values)
    norm.NormSetTxOnly(here, True, False)
    norm.NormSetTxRate(here, ctypes.c_double(float(values.get("rate", 10e6))))
    if values.get("cc") == "1":
        norm.NormSetCongestionControl(here, True, True)
    norm.NormSetBackoffFactor(here, ctypes.c_double(float(values.get("backoff", 0))))
    norm.NormSetGrttEstimate(here, ctypes.c_double(float(values.get("grtt", 0.1))))
    norm.NormSetGroupSize(here, int(values.get("group", 10)))
    norm.NormSetTxRobustFactor(here, ROBUST)
    norm.NormSetAutoAckingNodes(here, TRACK_RECEIVERS)
    # With heavy losses it fails, or takes twice as long, unless parity goes with every block.
    parity, auto = (128, 64) if float(values.get("lost", 0)) >= 60 else (64, 0)
    if not norm.NormStartSender(here, 1, BUFFER_BYTES, SEGMENT_BYTES, BLOCK, parity, 0):
        sys.exit("cannot send")
    norm.NormSetTxSocketBuffer(here, SOCKET_BYTES)
    norm.NormSetAutoParity(here, auto)
    tell("begin")
    # Without NORM_INFO, which is not repaired well.
    sent = norm.NormFileEnqueue(here, file.encode(), None, 0)
    if not sent:
        sys.exit("cannot send the file")
    norm.NormSetWatermark(here, ctypes.c_void_p(sent), False)
    for _ in events(norm, instance):
        pass


def main():
    norm = library()
    if not norm:
        sys.exit("NRL's NORM library (Debian: libnorm-dev) is not installed")
    if sys.argv[1] == "check":
        return
    what, address, port, file, *values = sys.argv[1:]
    {"receive": receive, "send": send}[what](norm, address, port, file, dict(word.split("=", 1) for word in values))


if __name__ == "__main__":
    main()
