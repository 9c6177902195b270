"""Slow and half-open clients: connections that stop at each stage, and are held open."""

import contextlib
import ssl
import struct

import wire
from common import answer, dial, dial_tls, hold, logged_in, tls

BIG = 1_000_000
LONG_CONNECT = wire.connect("c" * 60_000, "u" * 20_000, "p" * 20_000)


def client_hello():
    """The first flight of TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    machine = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        machine.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def silent_tcp(site, seconds):
    """4,000 connections without a byte."""
    return hold(seconds, 1_000, 4_000, lambda number: dial(site["mqtt"], number))


def half_hello(site, seconds):
    """4,000 connections with half a ClientHello and a byte of it a second."""
    hello = client_hello()
    return hold(seconds, 1_000, 4_000, lambda number: dial(site["mqtts"], number), hello[: len(hello) // 2], b"\0")


def silent_tls(site, seconds):
    """2,000 connections that do not finish a handshake of TLS."""
    return hold(seconds, 500, 2_000, lambda number: dial(site["https"], number), client_hello())


def half_upgrade(site, seconds):
    """2,000 WebSocket upgrades without an end, of 8 KB and a byte a second."""
    request = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nX-Long: " + b"x" * 8_000
    return hold(seconds, 500, 2_000, lambda number: dial(site["ws"], number), request, b"x")


def half_headers(site, seconds):
    """1,000 requests over TLS without an end, with 15 KB of headers and a byte a second."""
    context = tls(site)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 15_000
    return hold(seconds, 200, 1_000, lambda number: dial_tls(site, context, number), request, b"x")


def half_headers_plain(site, seconds):
    """1,000 requests without an end at the port for metrics, which accepts 256."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 4_000
    return hold(seconds, 500, 1_000, lambda number: dial(site["http"], number), request, b"x")


def unfinished_bodies(site, seconds):
    """500 connections, each with most of a body of 8 MB that never ends."""
    context, size = tls(site), 8_000_000
    request = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n" % size + b" " * (size - 65536)
    return hold(seconds, 200, 500, lambda number: dial_tls(site, context, number), request)


def half_connect(site, seconds):
    """2,000 CONNECTs of 100 kB without their last bytes."""
    return hold(seconds, 500, 2_000, lambda number: dial(site["mqtt"], number), LONG_CONNECT[:-16])


def half_publish(site, seconds):
    """500 clients with an account, each with a PUBLISH of 1 MB without its last bytes."""
    packet = wire.publish("half", 1, bytes(BIG))[:-16]
    return hold(seconds, 100, 500, lambda number: logged_in(site, f"half-{number}", False, number=number), packet)


def half_frames(site, seconds):
    """1,000 HTTP/2 connections with 256 KB of a header block that never ends (CONTINUATION)."""
    context = tls(site, ["h2"])
    block = wire.h2_frame(1, 0, 1, wire.H2_REQUEST)
    filler = wire.h2_literal(b"x-long", b"x" * 120) * 120
    block += wire.h2_frame(9, 0, 1, filler[:16_000]) * 16
    return hold(seconds, 100, 1_000, lambda number: dial_tls(site, context, number), wire.h2_preface() + block)


# 64 requests over HTTP/2 whose bodies do not come, with 8 KB of headers.
OPEN_REQUESTS = wire.h2_preface() + b"".join(
    wire.h2_frame(1, 4, 2 * at + 1, wire.H2_REQUEST + wire.h2_literal(b"x-long", b"x" * 120) * 60) for at in range(64)
)


def open_streams(site, seconds):
    """6,400 HTTP/2 requests a second whose bodies do not come, with 8 KB of headers: 64 on a connection, which is closed
    after ten seconds."""
    context = tls(site, ["h2"])
    held = hold(seconds, 100, 1_000, lambda number: dial_tls(site, context, number), OPEN_REQUESTS, lasting_s=10)
    return {**held, "number": 64 * held["number"]}


def more_open_streams(site, seconds):
    """The same on up to 4,000 connections, which are not closed."""
    context = tls(site, ["h2"])
    held = hold(seconds, 300, 4_000, lambda number: dial_tls(site, context, number), OPEN_REQUESTS)
    return {**held, "number": 64 * held["number"]}


def half_web_socket(site, seconds):
    """1,000 WebSockets with a CONNECT of 100 kB in a frame without its last bytes."""
    key = b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    key += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    packet = LONG_CONNECT
    frame = b"\x82\xff" + struct.pack(">Q", len(packet)) + bytes(4) + packet[:-16]
    return hold(seconds, 200, 1_000, lambda number: dial(site["ws"], number), key + frame)


# Signature, and TCP over IPv4 with 1,000 bytes to follow.
PROXY_HEADER = b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + struct.pack(">H", 1_000)


def half_proxy_header(site, seconds):
    """4,000 connections with half a header of a proxy and a byte of it a second, where the broker expects one."""
    return hold(seconds, 1_000, 4_000, lambda number: dial(site["wss"], number), PROXY_HEADER, b"\0")


def silent_after_tls(site, seconds):
    """4,000 connections that finish a handshake of TLS and say nothing more."""
    context = tls(site, ["mqtt"])
    return hold(seconds, 500, 4_000, lambda number: dial_tls(site, context, number, "mqtts"))


def idle_sessions(site, seconds):
    """10,000 sessions of one account that are connected and say nothing."""
    with contextlib.suppress(OSError):
        # From the first on, logins are remembered and not queued.
        answer(logged_in(site, "idle", durable=False), wire.Packets())
    return hold(seconds, 1_000, 10_000, lambda number: logged_in(site, f"idle-{number}", False, number=number))


ATTACKS = {
    "silent, TCP": silent_tcp,
    "silent after TLS": silent_after_tls,
    "half a header of a proxy": half_proxy_header,
    "idle sessions": idle_sessions,
    "half a ClientHello": half_hello,
    "silent, TLS": silent_tls,
    "half an upgrade, WebSocket": half_upgrade,
    "half a frame, WebSocket": half_web_socket,
    "half the headers, HTTP/1.1": half_headers,
    "half the headers, metrics": half_headers_plain,
    "half the headers, HTTP/2": half_frames,
    "open requests, HTTP/2": open_streams,
    "open requests of more connections, HTTP/2": more_open_streams,
    "unfinished bodies": unfinished_bodies,
    "half a CONNECT": half_connect,
    "half a PUBLISH": half_publish,
}
