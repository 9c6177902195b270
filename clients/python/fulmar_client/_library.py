"""libfulmar by ctypes: its functions and structures are those of fulmar.h."""

import ctypes
import os
import pathlib

INVALID, TIMEOUT, CLOSED, BUSY, INTERNAL = -1, -2, -3, -4, -5
CONNECTED, DISCONNECTED, MESSAGE, PUBLISHED, SUBSCRIBED, UNSUBSCRIBED, MIGRATED, MAY_REPEAT = range(1, 9)
TRANSPORTS = ["mqtt", "mqtts", "quic", "ws", "wss"]


class Error(Exception):
    """A call failed; `code` is one of fulmar.h's."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class Property(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("name_size", ctypes.c_size_t), ("value", ctypes.c_void_p), ("value_size", ctypes.c_size_t),
        ("number", ctypes.c_uint32), ("id", ctypes.c_uint8),
    ]


class Publication(ctypes.Structure):
    _fields_ = [
        ("topic", ctypes.c_char_p), ("payload", ctypes.c_char_p), ("payload_size", ctypes.c_size_t),
        ("properties", ctypes.POINTER(Property)), ("property_count", ctypes.c_size_t), ("qos", ctypes.c_uint8),
        ("retain", ctypes.c_bool),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        ("token", ctypes.c_uint64), ("receipt", ctypes.c_uint64), ("retry_in", ctypes.c_int64), ("topic", ctypes.c_char_p),
        ("payload", ctypes.c_void_p), ("payload_size", ctypes.c_size_t), ("properties", ctypes.POINTER(Property)),
        ("property_count", ctypes.c_size_t), ("text", ctypes.c_char_p), ("kind", ctypes.c_uint32), ("reason", ctypes.c_int32),
        ("qos", ctypes.c_uint8), ("transport", ctypes.c_uint8), ("retain", ctypes.c_bool), ("dup", ctypes.c_bool),
        ("session_present", ctypes.c_bool), ("early_data", ctypes.c_bool),
    ]


class PathStructure(ctypes.Structure):
    _fields_ = [
        ("rtt_us", ctypes.c_uint64), ("lost_packets", ctypes.c_uint64), ("sent_bytes", ctypes.c_uint64),
        ("received_bytes", ctypes.c_uint64), ("migrations", ctypes.c_uint32), ("server_moves", ctypes.c_uint32),
        ("transport", ctypes.c_uint8), ("early_data", ctypes.c_bool),
    ]


def load() -> ctypes.CDLL:
    """The library in this package, or the one that FULMAR_LIBRARY names."""
    beside = pathlib.Path(__file__).parent / "libfulmar.so"
    library = ctypes.CDLL(os.environ.get("FULMAR_LIBRARY") or str(beside))
    handle, text, wait = ctypes.c_uint64, ctypes.c_char_p, ctypes.c_int64
    for name, result, arguments in [
        ("version", text, []),
        ("error", text, []),
        ("options_new", handle, [text]),
        ("options_set", ctypes.c_int, [handle, text, text, ctypes.c_size_t]),
        ("free", ctypes.c_int, [handle]),
        ("connect", handle, [handle]),
        ("publish", ctypes.c_int, [handle, ctypes.POINTER(Publication), handle, wait]),
        ("subscribe", ctypes.c_int, [handle, text, ctypes.c_uint8, handle]),
        ("unsubscribe", ctypes.c_int, [handle, text, handle]),
        ("next", ctypes.c_int, [handle, ctypes.POINTER(Event), wait]),
        ("event_fd", ctypes.c_int, [handle]),
        ("acknowledge", ctypes.c_int, [handle, handle]),
        ("network_changed", ctypes.c_int, [handle]),
        ("path", ctypes.c_int, [handle, ctypes.POINTER(PathStructure)]),
        ("disconnect", ctypes.c_int, [handle, wait]),
    ]:
        function = getattr(library, f"fulmar_{name}")
        function.restype, function.argtypes = result, arguments
    return library


LIBRARY = load()


def checked(answer: int) -> int:
    """The answer of a function that fails with a negative number."""
    if answer < 0:
        raise Error(answer, LIBRARY.fulmar_error().decode())
    return answer


def made(handle: int) -> int:
    """The handle of a function that fails with 0."""
    if handle == 0:
        raise Error(INVALID, LIBRARY.fulmar_error().decode())
    return handle


def as_text(text: str, what: str) -> bytes:
    """For C, where a text ends at a zero byte."""
    encoded = text.encode()
    if b"\0" in encoded:
        raise Error(INVALID, f"{what} has a zero byte")
    return encoded
