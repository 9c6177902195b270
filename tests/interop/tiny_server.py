"""aioquic as a server for the small client: QUIC, and as much of MQTT 5 as it needs to be answered. Prints
its port when it listens, and serves until its standard input ends.

    tiny_server.py CERTIFICATE KEY [retry | cookie | group]

`retry` sends a Retry packet to every new address. `cookie` answers a first ClientHello with a
HelloRetryRequest that has a cookie, `group` with one that asks for a key share of P-256: aioquic sends none
by itself, so its handshake begins here with what RFC 8446, section 4.4.1, makes of the first ClientHello."""

import asyncio
import sys

from aioquic import tls
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import StreamDataReceived
from cryptography.hazmat.primitives import hashes

# What makes a ServerHello a HelloRetryRequest (RFC 8446, section 4.1.3).
RETRY_RANDOM = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
# Of the length of a hash with what a server needs to know again.
COOKIE = bytes(range(97))
COOKIE_EXTENSION = 44


def block(size: int, content: bytes) -> bytes:
    return len(content).to_bytes(size, "big") + content


def digest(data: bytes) -> bytes:
    hashed = hashes.Hash(hashes.SHA256())
    hashed.update(data)
    return hashed.finalize()


class Schedule(tls.KeySchedule):
    """A key schedule whose transcript begins with what came before the second ClientHello."""

    before = b""

    def __init__(self, cipher_suite):
        super().__init__(cipher_suite)
        self.update_hash(Schedule.before)

    def derive_secret(self, label):
        if label != b"res binder":
            return super().derive_secret(label)
        # The binder's key is derived with the hash of nothing.
        whole, self.hash = self.hash, hashes.Hash(self.algorithm)
        key = super().derive_secret(label)
        self.hash = whole
        return key


class Insisting(tls.Context):
    """A handshake that sends HelloRetryRequest first."""

    # A cookie (section 4.2.2), or the group P-256 (section 4.2.8), and the version.
    extension = b""
    retried = False

    def _server_handle_hello(self, input_buf, initial_buf, handshake_buf):
        hello = tls.pull_client_hello(input_buf)
        if not self.retried:
            self.retried = True
            extensions = self.extension + bytes([0, 43, 0, 2, 3, 4])
            body = b"\3\3" + RETRY_RANDOM + bytes([0, 0x13, 0x01, 0]) + block(2, extensions)
            retry = bytes([tls.HandshakeType.SERVER_HELLO]) + block(3, body)
            initial_buf.push_bytes(retry)
            Schedule.before = bytes([254]) + block(3, digest(input_buf.data)) + retry
            print("asked again", flush=True)
            return
        said = dict(hello.other_extensions)
        if said.get(COOKIE_EXTENSION) != block(2, COOKIE) or hello.early_data:
            raise tls.AlertIllegalParameter("the second ClientHello is not what was asked for")
        print("cookie returned", flush=True)
        input_buf.seek(0)
        super()._server_handle_hello(input_buf, initial_buf, handshake_buf)


class Mqtt(QuicConnectionProtocol):
    """Acknowledges what comes, and sends messages back to the stream if they match its subscription."""

    def __init__(self, *rest, **named):
        super().__init__(*rest, **named)
        self.received = {}
        self.filters = set()

    def quic_event_received(self, event):
        if not isinstance(event, StreamDataReceived):
            return
        rest = self.received.get(event.stream_id, b"") + event.data
        # Packets this short have a length of one byte.
        while len(rest) >= 2 and len(rest) >= 2 + rest[1]:
            assert rest[1] < 0x80
            self.answer(event.stream_id, rest[0], rest[2:2 + rest[1]])
            rest = rest[2 + rest[1]:]
        self.received[event.stream_id] = rest

    def answer(self, stream, first, body):
        out = b""
        if first >> 4 == 1:
            out = bytes([0x20, 3, 0, 0, 0])
        elif first >> 4 == 3:
            end = 2 + int.from_bytes(body[:2], "big")
            out = bytes([0x40, 2]) + body[end:end + 2]
            if body[2:end] in self.filters:
                out += bytes([0x32, len(body)]) + body
        elif first >> 4 == 8:
            end = 5 + int.from_bytes(body[3:5], "big")
            self.filters.add(body[5:end])
            out = bytes([0x90, 4]) + body[:2] + bytes([0, 1])
        self._quic.send_stream_data(stream, out)
        self.transmit()


async def main(certificate, key, kind=""):
    if kind in ("cookie", "group"):
        wanted = {"cookie": (COOKIE_EXTENSION, block(2, COOKIE)), "group": (51, bytes([0, 23]))}
        number, content = wanted[kind]
        Insisting.extension = number.to_bytes(2, "big") + block(2, content)
        tls.Context, tls.KeySchedule = Insisting, Schedule
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["mqtt"])
    configuration.load_cert_chain(certificate, key)
    tickets = {}
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: QuicServer(
            configuration=configuration,
            create_protocol=Mqtt,
            retry=kind == "retry",
            session_ticket_handler=lambda ticket: tickets.update({ticket.ticket: ticket}),
            # Each is taken once.
            session_ticket_fetcher=lambda name: tickets.pop(name, None),
        ),
        local_addr=("127.0.0.1", 0),
    )
    print(transport.get_extra_info("sockname")[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
