"""A NORM sender or receiver that is not ours: NRL's library, called through its C interface.

    norm_peer.py receive ADDRESS PORT FOLDER LOSS       one file, losing LOSS per cent of what comes
    norm_peer.py send ADDRESS PORT FILE LOSS RATE       one file at RATE bits/s, losing LOSS per cent of what goes
    norm_peer.py receive-stream ADDRESS PORT FILE LOSS      a stream, into FILE
    norm_peer.py send-stream ADDRESS PORT FILE LOSS RATE    a file as a stream

Receiving prints the file's path, sending "acknowledged"; then it ends, but for a stream's, which says its end until it is
ended itself. "broken" is printed when something of a stream was lost."""

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
STREAM_BYTES = 2 << 20
FLUSH_ACTIVE = 2
NODE_ANY = ctypes.c_uint(0xFFFFFFFF)
# Of the states of an acknowledgement.
ACK_FAILURE = 1
ACK_SUCCESS = 3
# Of the library's events.
QUEUE_VACANCY = 1
QUEUE_EMPTY = 2
WATERMARK_COMPLETED = 4
OBJECT_INFO = 18
OBJECT_UPDATED = 19
OBJECT_COMPLETED = 20
ACKING_NODE_NEW = 26


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
    for function in ("NormCreateInstance", "NormCreateSession", "NormFileEnqueue", "NormStreamOpen"):
        getattr(norm, function).restype = ctypes.c_void_p
    norm.NormStreamRead.restype = ctypes.c_bool
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


def receive_stream(norm, address, port, file, loss):
    instance, here = session(norm, address, port, "NormSetRxLoss", loss)
    norm.NormSetDefaultUnicastNack(here, True)
    norm.NormSetDefaultSyncPolicy(here, SYNC_ALL)
    if not norm.NormStartReceiver(here, BUFFER_BYTES):
        sys.exit("cannot receive")
    print("ready", flush=True)
    piece = ctypes.create_string_buffer(1 << 16)
    with open(file, "wb", buffering=0) as out:
        for kind, which in events(norm, instance):
            if kind in (OBJECT_UPDATED, OBJECT_COMPLETED):
                length = ctypes.c_uint(len(piece))
                while norm.NormStreamRead(which, piece, ctypes.byref(length)):
                    if not length.value:
                        break
                    out.write(piece.raw[: length.value])
                    length.value = len(piece)
                else:
                    print("broken", flush=True)
            if kind == OBJECT_COMPLETED:
                print(file, flush=True)


def begin(norm, address, port, loss, rate):
    """A session that sends."""
    instance, here = session(norm, address, port, "NormSetTxLoss", loss)
    norm.NormSetTxOnly(here, True, False)
    norm.NormSetTxRate(here, ctypes.c_double(rate))
    norm.NormSetBackoffFactor(here, ctypes.c_double(0))
    norm.NormSetGrttEstimate(here, ctypes.c_double(0.05))
    norm.NormSetAutoAckingNodes(here, TRACK_RECEIVERS)
    if not norm.NormStartSender(here, 1, BUFFER_BYTES, SEGMENT_BYTES, BLOCK, PARITY, 0):
        sys.exit("cannot send")
    return instance, here


def is_acknowledged(norm, here, kind):
    """Whether everything is acknowledged, after an event. The library asks twenty times, within 40 ms on this machine,
    and posts the same event when nobody has answered; while it knows no receiver, it posts none."""
    if kind not in (WATERMARK_COMPLETED, ACKING_NODE_NEW):
        return False
    status = norm.NormGetAckingStatus(here, NODE_ANY)
    if status == ACK_FAILURE:
        # Otherwise this would discard the event of a success.
        norm.NormResetWatermark(here)
    return status == ACK_SUCCESS


def send_stream(norm, address, port, file, loss, rate):
    instance, here = begin(norm, address, port, loss, rate)
    stream = ctypes.c_void_p(norm.NormStreamOpen(here, STREAM_BYTES, None, 0))
    rest = pathlib.Path(file).read_bytes()
    happened = events(norm, instance)
    while rest:
        written = norm.NormStreamWrite(stream, rest[: 1 << 16], len(rest[: 1 << 16]))
        rest = rest[written:]
        while rest and not written and next(happened)[0] not in (QUEUE_VACANCY, QUEUE_EMPTY):
            pass
    norm.NormStreamFlush(stream, True, FLUSH_ACTIVE)
    norm.NormSetWatermark(here, stream, False)
    closed = False
    for kind, _ in happened:
        if not closed and is_acknowledged(norm, here, kind):
            print("acknowledged", flush=True)
            norm.NormStreamClose(stream, True)
            closed = True


def send(norm, address, port, file, loss, rate):
    instance, here = begin(norm, address, port, loss, rate)
    name = pathlib.Path(file).name.encode()
    sent = norm.NormFileEnqueue(here, file.encode(), name, len(name))
    if not sent:
        sys.exit("cannot send the file")
    norm.NormSetWatermark(here, ctypes.c_void_p(sent), False)
    for kind, _ in events(norm, instance):
        if is_acknowledged(norm, here, kind):
            print("acknowledged", flush=True)
            return


if __name__ == "__main__":
    _, what, address, port, path, loss, *rest = sys.argv
    does = {"receive": receive, "send": send, "receive-stream": receive_stream, "send-stream": send_stream}[what]
    does(library(), address, int(port), path, float(loss), *map(float, rest))
