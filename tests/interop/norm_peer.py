"""A NORM sender or receiver that is not ours: NRL's library, called through its C interface.

    norm_peer.py receive ADDRESS PORT FOLDER LOSS       one file, losing LOSS per cent of what comes
    norm_peer.py send ADDRESS PORT FILE LOSS RATE       one file at RATE bits/s, losing LOSS per cent of what goes

Receiving prints the file's path, sending "acknowledged"; then it ends."""

import ctypes
import ctypes.util
import pathlib
import sys

NODE = 77
BUFFER_BYTES = 16 << 20
SEGMENT_BYTES = 1400
BLOCK, PARITY = 64, 32
SYNC_ALL = 2
TRACK_RECEIVERS = 1
# Of the library's events.
WATERMARK_COMPLETED = 4
OBJECT_INFO = 18
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


def events(norm, instance):
    event = Event()
    while norm.NormGetNextEvent(instance, ctypes.byref(event), True):
        yield event.type, ctypes.c_void_p(event.object)


def session(norm, address, port, loss_function, loss):
    instance = ctypes.c_void_p(norm.NormCreateInstance(False))
    session = ctypes.c_void_p(norm.NormCreateSession(instance, address.encode(), port, NODE))
    getattr(norm, loss_function)(session, ctypes.c_double(loss))
    return instance, session


def receive(norm, address, port, folder, loss):
    instance, here = session(norm, address, port, "NormSetRxLoss", loss)
    norm.NormSetCacheDirectory(instance, folder.encode())
    norm.NormSetDefaultUnicastNack(here, True)
    norm.NormSetDefaultSyncPolicy(here, SYNC_ALL)
    if not norm.NormStartReceiver(here, BUFFER_BYTES):
        sys.exit("cannot receive")
    print("ready", flush=True)
    for kind, which in events(norm, instance):
        if kind == OBJECT_INFO:
            info = ctypes.create_string_buffer(2000)
            length = norm.NormObjectGetInfo(which, info, 2000)
            # Its name, and after a zero byte what only Fulmar understands.
            name = info.raw[:length].split(b"\0")[0]
            norm.NormFileRename(which, (folder.encode() + b"/" + name))
        elif kind == OBJECT_COMPLETED:
            name = ctypes.create_string_buffer(1000)
            norm.NormFileGetName(which, name, 1000)
            print(name.value.decode(), flush=True)
            # It goes on acknowledging until it is ended.


def send(norm, address, port, file, loss, rate):
    instance, here = session(norm, address, port, "NormSetTxLoss", loss)
    norm.NormSetTxOnly(here, True, False)
    norm.NormSetTxRate(here, ctypes.c_double(rate))
    norm.NormSetBackoffFactor(here, ctypes.c_double(0))
    norm.NormSetGrttEstimate(here, ctypes.c_double(0.05))
    norm.NormSetAutoAckingNodes(here, TRACK_RECEIVERS)
    if not norm.NormStartSender(here, 1, BUFFER_BYTES, SEGMENT_BYTES, BLOCK, PARITY, 0):
        sys.exit("cannot send")
    name = pathlib.Path(file).name.encode()
    sent = norm.NormFileEnqueue(here, file.encode(), name, len(name))
    if not sent:
        sys.exit("cannot send the file")
    norm.NormSetWatermark(here, ctypes.c_void_p(sent), False)
    for kind, _ in events(norm, instance):
        if kind == WATERMARK_COMPLETED:
            print("acknowledged", flush=True)
            return


if __name__ == "__main__":
    _, what, address, port, path, loss, *rest = sys.argv
    if what == "receive":
        receive(library(), address, int(port), path, float(loss))
    else:
        send(library(), address, int(port), path, float(loss), float(rest[0]))
