"""The few packets of MQTT, MQTT-SN, CoAP, HTTP/2, QUIC and DTLS that the attacks need, made by hand."""

import base64
import hashlib
import hmac
import os
import struct


def text(value) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack(">H", len(data)) + data


def length(number: int) -> bytes:
    """A variable byte integer of MQTT."""
    coded = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        coded.append(low | 0x80 if number else low)
        if not number:
            return bytes(coded)


def packet(kind: int, body: bytes) -> bytes:
    """An MQTT packet; the remaining length takes at most four bytes."""
    return bytes([kind]) + length(len(body)) + body


def connect(client_id, user, password, keep_alive_s=60) -> bytes:
    flags = 0xC2
    return packet(0x10, text("MQTT") + struct.pack(">BBH", 4, flags, keep_alive_s) + text(client_id) + text(user) + text(password))


def connect5(client_id, user, password, expiry_s, will=None) -> bytes:
    """Of MQTT 5, for a session that is resumed and lasts as long; a will waits until the session ends."""
    properties = b"\x05\x11" + struct.pack(">I", expiry_s)
    head = text("MQTT") + struct.pack(">BBH", 5, 0xC0 if will is None else 0xC4, 0) + properties + text(client_id)
    if will is not None:
        head += b"\x05\x18" + struct.pack(">I", expiry_s) + text("will") + text(will)
    return packet(0x10, head + text(user) + text(password))


SCRAM = b"\x15" + text("SCRAM-SHA-256")


def connect_scram(client_id, first, expiry_s=0, will=None) -> bytes:
    """Of MQTT 5, with the client's first message of SCRAM; a will is published when the connection ends."""
    properties = b"\x11" + struct.pack(">I", expiry_s) + SCRAM + b"\x16" + text(first)
    flags = 0x00 if will is None else 0x04
    head = text("MQTT") + struct.pack(">BBH", 5, flags, 0) + length(len(properties)) + properties + text(client_id)
    if will is not None:
        head += b"\x00" + text("will") + text(will)
    return packet(0x10, head)


def auth_scram(data) -> bytes:
    """AUTH that continues an exchange."""
    properties = SCRAM + b"\x16" + text(data)
    return packet(0xF0, b"\x18" + length(len(properties)) + properties)


def scram_first(user) -> bytes:
    return b"n,," + scram_bare(user)


def scram_bare(user) -> bytes:
    return b"n=" + user.encode() + b",r=" + base64.b64encode(os.urandom(18))


def scram_challenge(packet) -> bytes:
    """The server's message in its AUTH."""
    body = packet[1]
    return body[body.index(b"r=") :]


def scram_wrong(packet) -> bytes:
    """A last message with a proof of nothing."""
    nonce = scram_challenge(packet).split(b",")[0]
    return b"c=biws," + nonce + b",p=" + base64.b64encode(bytes(32))


class Scram:
    """Exchanges of one user, whose password is stretched once."""

    def __init__(self, user, password):
        self.user, self.password, self.stretched, self.bare = user, password.encode(), {}, b""

    def first(self) -> bytes:
        self.bare = scram_bare(self.user)
        return b"n,," + self.bare

    def final(self, packet) -> bytes:
        if packet[0] != 0xF0:
            raise ConnectionError("refused")
        challenge = scram_challenge(packet)
        nonce, salt, rounds = challenge.split(b",")[:3]
        key = (salt, rounds)
        if key not in self.stretched:
            self.stretched[key] = hashlib.pbkdf2_hmac("sha256", self.password, base64.b64decode(salt[2:]), int(rounds[2:]))
        client = hmac.digest(self.stretched[key], b"Client Key", "sha256")
        unsigned = b"c=biws," + nonce
        signed = b",".join([self.bare, challenge, unsigned])
        signature = hmac.digest(hashlib.sha256(client).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client, signature))
        return unsigned + b",p=" + base64.b64encode(proof)


def subscribe(topic) -> bytes:
    return packet(0x82, struct.pack(">H", 1) + text(topic) + b"\x01")


def subscribe5(filters, qos=1) -> bytes:
    return packet(0x82, struct.pack(">HB", 1, 0) + b"".join(text(topic) + bytes([qos]) for topic in filters))


def publish(topic, number, payload) -> bytes:
    """At QoS 1."""
    return packet(0x32, text(topic) + struct.pack(">H", number) + payload)


def publish5(topic, payload, number=None, retain=False, alias=None) -> bytes:
    """Of MQTT 5; at QoS 1 with a number."""
    properties = b"\x00" if alias is None else b"\x03\x23" + struct.pack(">H", alias)
    identifier = b"" if number is None else struct.pack(">H", number)
    return packet(0x30 | (number is not None) << 1 | retain, text(topic) + identifier + properties + payload)


def publish5_user_properties(topic, bytes_of_them, payload) -> bytes:
    """Of MQTT 5 at QoS 0, with user properties of about this length."""
    one = b"\x26" + text("p") + text("v" * 60_000)
    properties = one * max(1, bytes_of_them // len(one))
    return packet(0x30, text(topic) + length(len(properties)) + properties + payload)


def publish5_qos2(topic, payload, number) -> bytes:
    return packet(0x34, text(topic) + struct.pack(">H", number) + b"\x00" + payload)


def puback(number) -> bytes:
    return packet(0x40, struct.pack(">H", number))


class Packets:
    """Bytes as they come, and the packets in them: (first byte, body)."""

    def __init__(self):
        self.buffer = b""

    def take(self, data):
        self.buffer += data
        while len(self.buffer) >= 2:
            length, shift, at = 0, 0, 1
            while at < len(self.buffer):
                byte = self.buffer[at]
                length |= (byte & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if not byte & 0x80:
                    break
            else:
                return
            if len(self.buffer) < at + length:
                return
            first, body = self.buffer[0], self.buffer[at : at + length]
            self.buffer = self.buffer[at + length :]
            yield first, body


def h2_frame(kind, flags, stream, body) -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body


def h2_preface() -> bytes:
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + h2_frame(4, 0, 0, b"")


def h2_literal(name, value) -> bytes:
    """A header without indexing and without Huffman (RFC 7541 section 6.2.2)."""
    # A length of 127 and more takes further bytes, the lowest bits first (section 5.1).
    rest, length = len(value) - 127, bytes([min(len(value), 127)])
    while rest >= 0:
        length += bytes([rest & 127 | (128 if rest > 127 else 0)])
        rest = rest >> 7 or -1
    return b"".join([b"\x00", bytes([len(name)]), name, length, value])


def h2_get(path) -> bytes:
    """The headers of a GET; further ones may follow."""
    names = (b":method", b":scheme", b":authority", b":path")
    return b"".join(map(h2_literal, names, (b"GET", b"https", b"localhost", path)))


H2_REQUEST = h2_get(b"/")


def h2_login(stream, body, path=b"/api/v1/session") -> bytes:
    """A POST of a login."""
    headers = b"".join(
        h2_literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"https"),
            (b":authority", b"localhost"),
            (b":path", path),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        )
    )
    return h2_frame(1, 4, stream, headers) + h2_frame(0, 1, stream, body)


def h2_reset(stream) -> bytes:
    return h2_frame(3, 0, stream, struct.pack(">I", 8))


def varint(value) -> bytes:
    return struct.pack(">H", value | 0x4000)


def expand(secret, label, length) -> bytes:
    """HKDF-Expand-Label of TLS 1.3, one block."""
    info = struct.pack(">HB", length, 6 + len(label)) + b"tls13 " + label + b"\x00\x01"
    return hmac.new(secret, info, hashlib.sha256).digest()[:length]


INITIAL_SALT = bytes.fromhex("38762cf7f55934b34d179ae6a4c80cadccbb7f0a")


def client_hello() -> bytes:
    """A whole ClientHello of TLS 1.3 for a protocol that nobody speaks: the server finds that out last."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    share = X25519PrivateKey.generate().public_key().public_bytes_raw()

    def extension(kind, body):
        return struct.pack(">HH", kind, len(body)) + body

    parameters = bytes([0x0F, 0, 0x04, 4]) + struct.pack(">I", 0x80100000)
    extensions = b"".join(
        [
            extension(0, struct.pack(">HBH", 12, 0, 9) + b"localhost"),
            extension(10, struct.pack(">HH", 2, 0x1D)),
            extension(13, struct.pack(">HHH", 4, 0x0403, 0x0807)),
            extension(16, struct.pack(">HB", 9, 8) + b"nonsense"),
            extension(43, b"\x02\x03\x04"),
            extension(51, struct.pack(">HHH", 36, 0x1D, 32) + share),
            extension(57, parameters),
        ]
    )
    body = b"\x03\x03" + os.urandom(32) + b"\x00" + struct.pack(">HH", 2, 0x1301) + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    return b"\x01" + struct.pack(">I", len(body))[1:] + body


def initial(hello) -> bytes:
    """A client's first datagram (RFC 9001 appendix A.2) with these bytes of TLS."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    destination = os.urandom(8)
    first = hmac.new(INITIAL_SALT, destination, hashlib.sha256).digest()
    secret = expand(first, b"client in", 32)
    key, iv, mask_key = expand(secret, b"quic key", 16), expand(secret, b"quic iv", 12), expand(secret, b"quic hp", 16)
    frames = b"\x06\x00" + varint(len(hello)) + hello
    head = b"\xc3\x00\x00\x00\x01" + bytes([8]) + destination + b"\x00\x00"
    frames = frames.ljust(1200 - len(head) - 2 - 4 - 16, b"\x00")
    head += varint(4 + len(frames) + 16) + b"\x00\x00\x00\x00"
    sealed = AESGCM(key).encrypt(iv, frames, head)
    encryptor = Cipher(algorithms.AES(mask_key), modes.ECB()).encryptor()
    mask = encryptor.update(sealed[:16])
    masked = bytearray(head)
    masked[0] ^= mask[0] & 0x0F
    for at in range(4):
        masked[-4 + at] ^= mask[1 + at]
    return bytes(masked) + sealed


def initial_of_noise() -> bytes:
    """What looks like an Initial and cannot be decrypted."""
    head = b"\xc3\x00\x00\x00\x01" + bytes([8]) + os.urandom(8) + b"\x00\x00"
    return head + varint(1200 - len(head) - 2) + os.urandom(1200 - len(head) - 2)


def dtls_hello() -> bytes:
    """A ClientHello of DTLS 1.2 without a cookie, for keys and certificates."""

    def extension(kind, body):
        return struct.pack(">HH", kind, len(body)) + body

    extensions = extension(10, struct.pack(">HHH", 4, 0x17, 0x1D)) + extension(11, b"\x01\x00")
    extensions += extension(13, struct.pack(">HH", 2, 0x0403)) + extension(23, b"")
    suites = struct.pack(">HHHH", 0xC02B, 0xC0AE, 0xC0A8, 0x00FF)
    body = b"\xfe\xfd" + os.urandom(32) + b"\x00\x00" + struct.pack(">H", len(suites)) + suites + b"\x01\x00"
    body += struct.pack(">H", len(extensions)) + extensions
    length = struct.pack(">I", len(body))[1:]
    message = b"\x01" + length + b"\x00\x00" + b"\x00\x00\x00" + length + body
    return b"\x16\xfe\xfd" + bytes(8) + struct.pack(">H", len(message)) + message


def coap_option(delta, value) -> bytes:
    """At most 268 bytes."""
    if len(value) < 13:
        return bytes([delta << 4 | len(value)]) + value
    return bytes([delta << 4 | 13, len(value) - 13]) + value


def coap(code, number, path, observe=False, block=None, payload=b"") -> bytes:
    """A confirmable request; `block` is the number of a block of 1024 bytes that others follow."""
    message = bytes([0x44, code]) + struct.pack(">HI", number & 0xFFFF, number)
    at = 0
    if observe:
        message, at = message + coap_option(6, b""), 6
    for segment in path:
        message, at = message + coap_option(11 - at, segment), 11
    if block is not None:
        # Option 27 is 16 after 11, more than a nibble holds.
        value = struct.pack(">I", block << 4 | 8 | 6)[1:]
        message += bytes([0xD0 | len(value), 27 - 11 - 13]) + value
    return message + (b"\xff" + payload if payload else b"")


def sn_packet(kind, body) -> bytes:
    if len(body) < 254:
        return bytes([len(body) + 2, kind]) + body
    return b"\x01" + struct.pack(">HB", len(body) + 4, kind) + body


def sn_connect(client_id) -> bytes:
    return sn_packet(0x04, b"\x00\x01" + struct.pack(">H", 600) + client_id.encode())


def sn_register(number, topic) -> bytes:
    return sn_packet(0x0A, struct.pack(">HH", 0, number & 0xFFFF or 1) + topic.encode())
