"""CoAP, DTLS and MQTT-SN."""

import contextlib
import select
import socket

import wire
from common import Pace, Peers, flood, from_somewhere, spread

PATIENCE_S = 1


def coap_observers(site, seconds):
    """5,000 observations a second, 2,000 peers with long topics; each 50th datagram publishes to one that all observe."""
    peers = Peers(site["coap"], 2_000)

    def one(number):
        if number % 50 == 49:
            peers.send(0, wire.coap(3, number, [b"ps", b"hot"], payload=bytes(500)))
            return
        topic = [b"hot"] if number < 2_000 else [b"x" * 250, b"%d" % number]
        peers.send(number, wire.coap(1, number, [b"ps", *topic], observe=True))

    return spread(Pace(seconds, 5_000), one)


def coap_blocks(site, seconds):
    """1,000 peers with uploads that never end, 5,000 blocks of 1 KiB a second."""
    peers = Peers(site["coap"], 1_000)

    def one(number):
        block = number // 1_000
        peers.send(number, wire.coap(3, number, [b"ps", b"upload", b"%d" % (number % 1_000)], block=block % 1_000, payload=bytes(1024)))

    return spread(Pace(seconds, 5_000), one)


def dtls_hellos(site, seconds):
    """300 a second, each with a random of its own."""
    return flood(seconds, 300, site["coaps"], [wire.dtls_hello() for _ in range(3000)])


def dtls_sessions(site, seconds):
    """100 finished handshakes a second, and then silence."""
    from OpenSSL import SSL

    context, kept = SSL.Context(SSL.DTLS_CLIENT_METHOD), []

    def one(number):
        sock, machine = from_somewhere(socket.SOCK_DGRAM, number), SSL.Connection(context)
        sock.connect(("127.0.0.1", site["coaps"]))
        machine.set_connect_state()
        machine.set_ciphertext_mtu(1200)
        for _ in range(20):
            done = False
            try:
                machine.do_handshake()
                done = True
            except SSL.WantReadError:
                pass
            except SSL.Error as error:
                raise ConnectionError("refused") from error
            with contextlib.suppress(SSL.WantReadError):
                while True:
                    sock.send(machine.bio_read(1500))
            if done:
                kept.append(sock)
                return
            # Not select(), which takes no more than 1024 files.
            waiting = select.poll()
            waiting.register(sock, select.POLLIN)
            if not waiting.poll(PATIENCE_S * 1000):
                return
            machine.bio_write(sock.recv(2048))

    spread(Pace(seconds, 100), one)
    return len(kept)


def sn_connects(site, seconds):
    """2,000 CONNECTs of new MQTT-SN clients a second."""
    peers = Peers(site["mqtt_sn"], 4_000)
    return spread(Pace(seconds, 2_000), lambda number: peers.send(number, wire.sn_connect(f"sn-{number}")))


def sn_registers(site, seconds):
    """100 MQTT-SN clients that register 2,000 long topics a second."""
    peers = Peers(site["mqtt_sn"], 100)

    def one(number):
        client, at = number % 100, number // 100
        peers.send(client, wire.sn_connect(f"sn-{client}") if at == 0 else wire.sn_register(at, f"{'x' * 200}/{at}"))

    return spread(Pace(seconds, 2_000), one)


ATTACKS = {
    "observers, CoAP": coap_observers,
    "unfinished uploads, CoAP": coap_blocks,
    "DTLS ClientHellos": dtls_hellos,
    "silent DTLS sessions": dtls_sessions,
    "CONNECTs, MQTT-SN": sn_connects,
    "REGISTERs, MQTT-SN": sn_registers,
}
