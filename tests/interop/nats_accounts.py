"""NATS' decentralised accounts for tests: an operator, its accounts and users, as `nsc` makes them. A user has a
credentials file: a token (JWT) that the account has signed, and the key that signs the server's challenge."""

import base64
import json
import time

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# First bytes of keys in NATS' text form.
OPERATOR, ACCOUNT, USER, SEED = 14 << 3, 0, 20 << 3, 18 << 3
LIMITS = ["subs", "data", "payload", "imports", "exports", "conn", "leaf", "mem_storage", "disk_storage", "streams",
          "consumer"]


def crc16(data: bytes) -> bytes:
    """CRC-16/XMODEM, little-endian."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc.to_bytes(2, "little")


def text(data: bytes) -> str:
    return base64.b32encode(data + crc16(data)).decode().rstrip("=")


class Key:
    def __init__(self, kind):
        self.kind, self.key = kind, Ed25519PrivateKey.generate()
        raw, form = serialization.Encoding.Raw, serialization.PublicFormat.Raw
        self.public = text(bytes([kind]) + self.key.public_key().public_bytes(raw, form))

    def seed(self) -> str:
        raw = self.key.private_bytes_raw()
        return text(bytes([SEED | self.kind >> 5, (self.kind & 31) << 3]) + raw)


def token(issuer: Key, subject: Key, name: str, claims: dict) -> str:
    def part(value):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(data).decode().rstrip("=")

    body = {"jti": name, "iat": int(time.time()), "iss": issuer.public, "sub": subject.public, "name": name,
            "nats": {**claims, "version": 2}}
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(body)}"
    return f"{signed}.{part(issuer.key.sign(signed.encode()))}"


class Accounts:
    """An operator with an account that has JetStream, and the system's, which the server needs beside it."""

    def __init__(self):
        operator, system, self.account = Key(OPERATOR), Key(ACCOUNT), Key(ACCOUNT)
        limits = {**dict.fromkeys(LIMITS, -1), "wildcards": True}
        without = {**limits, "mem_storage": 0, "disk_storage": 0, "streams": 0, "consumer": 0}
        accounts = {
            system.public: token(operator, system, "SYS", {"type": "account", "limits": without}),
            self.account.public: token(operator, self.account, "FULMAR", {"type": "account", "limits": limits}),
        }
        preloaded = "\n".join(f"  {key}: {jwt}" for key, jwt in accounts.items())
        # Lines of a server's configuration.
        self.lines = f"operator: {token(operator, operator, 'test', {'type': 'operator'})}\n" \
                     f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}"

    def credentials(self) -> str:
        """The contents of a new user's credentials file."""
        user = Key(USER)
        claims = {"type": "user", "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
        jwt = token(self.account, user, "node", claims)
        return f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n" \
               f"-----BEGIN USER NKEY SEED-----\n{user.seed()}\n------END USER NKEY SEED------\n"
