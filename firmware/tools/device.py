#!/usr/bin/env python3
"""A device's page of settings; typed as a command, this writes one to a file. For a device in QEMU also its
ticket and the command line of its board. What runs it is elsewhere: run.py shows one to people,
tests/interop/test_firmware.py tests one."""

import argparse
import ipaddress
import pathlib
import struct
import sys

# Where the image leaves pages free: firmware/board-lm3s6965/memory.x.
SETTINGS_AT = 0x13800
TICKET_AT = 0x13C00
PAGE = 1024
# Begins the page; the last byte is the format's version (firmware/sensor/src/settings.rs).
MAGIC = b"FLM\x01"
# QEMU's user network: the host as the guest sees it, and what its own DHCP server would say.
HOST = "10.0.2.2"
FIXED_NETWORK = ("10.0.2.15", 24, HOST)
# About 31 million instructions a second of the guest's time, whatever the host can do; the guest's clock
# runs with them, so that a busy host makes a test slower but changes nothing of what it sees.
SPEED = "shift=5,align=off"


class Settings:
    """A device's settings, which firmware/sensor/src/settings.rs reads. `authority`: the key is that of the
    broker's certificate authority, for an image with the feature `x509`. Without `network` there must be
    DHCP in the image."""

    def __init__(self, port: int, server_key: bytes, *, authority=False, server_name="localhost", client_id="sensor-1",
                 host=HOST, mac="52:54:00:12:34:56", network=FIXED_NETWORK, user=None, password=None,
                 interval_s=5, listen_ms=250, wakes=0, resume=True):
        address = ipaddress.IPv4Address(host).packed
        self.entries = [
            (1, address + struct.pack(">H", port)),
            (2, server_name.encode()),
            (13 if authority else 3, server_key),
            (4, client_id.encode()),
            (5, bytes.fromhex(mac.replace(":", ""))),
            (9, struct.pack(">I", interval_s)),
            (10, struct.pack(">H", listen_ms)),
            (11, struct.pack(">H", wakes)),
            (12, bytes([resume])),
        ]
        if network:
            own, prefix_bits, gateway = network
            packed = [ipaddress.IPv4Address(address).packed for address in (own, gateway)]
            self.entries.append((6, packed[0] + bytes([prefix_bits]) + packed[1]))
        if user is not None:
            self.entries.append((7, user.encode()))
        if password is not None:
            self.entries.append((8, password))

    def page(self) -> bytes:
        page = MAGIC + b"".join(bytes([tag, len(value)]) + value for tag, value in self.entries)
        if len(page) > PAGE:
            raise ValueError(f"settings of {len(page)} bytes do not fit a page")
        return page.ljust(PAGE, b"\xff")


def command(image: pathlib.Path, folder: pathlib.Path, settings: Settings) -> list[str]:
    """QEMU's command line, to be run in `folder`, where the device keeps its ticket between two runs:
    what the page of flash is to a real one. The serial line is standard output."""
    (folder / "settings.bin").write_bytes(settings.page())
    line = [
        "qemu-system-arm", "-M", "lm3s6965evb", "-display", "none", "-monitor", "none", "-serial", "stdio",
        # A reset ends QEMU instead of going round for ever.
        "-no-reboot",
        "-nic", "user,model=stellaris", "-icount", SPEED,
        "-semihosting-config", "enable=on,target=native",
        "-device", f"loader,file=settings.bin,addr={SETTINGS_AT:#x},force-raw=on",
        "-kernel", str(image),
    ]
    if (folder / "ticket.bin").exists():
        line += ["-device", f"loader,file=ticket.bin,addr={TICKET_AT:#x},force-raw=on"]
    return line


def checked(what: str, parse):
    """Parses a word of the command line; of one that is wrong, the message says what it should be."""
    def parsed(text: str):
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None
    return parsed


def require(good: bool):
    if not good:
        raise ValueError


def parse_key(text: str) -> bytes:
    require(len(value := bytes.fromhex(text)) in (32, 65))
    return value


def parse_text(text: str) -> str:
    """What the device accepts as text: firmware/sensor/src/settings.rs."""
    require(0 < len(text) < 256 and all("!" <= letter <= "~" for letter in text))
    return text


def parse_endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    require(0 < int(port) < 1 << 16)
    return str(ipaddress.IPv4Address(host)), int(port)


def parse_mac(text: str) -> str:
    value = bytes.fromhex(text.replace(":", ""))
    require(len(value) == 6 and any(value))
    return text


def below(limit: int):
    """Numbers that fit an entry."""
    def parse(text: str) -> int:
        require(0 <= int(text) < limit)
        return int(text)
    return checked(f"a number from 0 to {limit - 1}", parse)


KEY = checked("a public key in hexadecimal digits: 32 bytes (Ed25519) or 65 (P-256)", parse_key)
TEXT = checked("up to 255 letters, digits and signs of ASCII without spaces", parse_text)
ENDPOINT = checked("an IPv4 address and a port, such as 192.0.2.7:14567", parse_endpoint)
MAC = checked("an Ethernet address, such as 02:00:00:00:00:11", parse_mac)
ADDRESS = checked("an IPv4 address", ipaddress.IPv4Address)
OWN = checked("an IPv4 address and prefix length, such as 192.0.2.17/24", ipaddress.IPv4Interface)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Write a device's page of settings to a file, which is then programmed into its flash "
                    f"(board-lm3s6965: address {SETTINGS_AT:#x}, {PAGE} bytes).")
    parser.add_argument("file", type=pathlib.Path, help="file to write")
    parser.add_argument("--broker", type=ENDPOINT, required=True, metavar="IPV4:PORT", help="the broker's QUIC address")
    parser.add_argument("--name", type=TEXT, required=True, help="the broker's name, as in its certificate")
    pinned = parser.add_mutually_exclusive_group(required=True)
    pinned.add_argument("--key", type=KEY, metavar="HEX",
                        help="the broker's public key, as `fulmar cert show` prints it")
    pinned.add_argument("--ca-key", type=KEY, metavar="HEX", help="instead, for an image built with x509: the CA's")
    parser.add_argument("--id", type=TEXT, required=True, help="MQTT client identifier")
    parser.add_argument("--mac", type=MAC, required=True, help="Ethernet address, such as 02:00:00:00:00:11")
    parser.add_argument("--address", type=OWN, metavar="IPV4/BITS",
                        help="the device's own address and prefix length, with --gateway [default: by DHCP]")
    parser.add_argument("--gateway", type=ADDRESS, metavar="IPV4", help="its gateway")
    parser.add_argument("--user", type=TEXT, help="user name")
    parser.add_argument("--password-file", type=pathlib.Path, metavar="FILE",
                        help="file whose first line is the user's password")
    parser.add_argument("--every", type=below(1 << 32), default=60, metavar="SECONDS",
                        help="seconds between wake-ups [default: %(default)s]")
    parser.add_argument("--listen-ms", type=below(1 << 16), default=250, metavar="MS",
                        help="milliseconds to wait for commands [default: %(default)s]")
    parser.add_argument("--wake-ups", type=below(1 << 16), default=0, metavar="COUNT",
                        help="wake-ups after which the device switches itself off [default: never]")
    parser.add_argument("--no-resume", action="store_true", help="never resume a connection")
    return parser


def main(words: list[str]):
    parser = arguments()
    given = parser.parse_args(words)
    if (given.address is None) != (given.gateway is None):
        parser.error("--address and --gateway belong together")
    if given.ca_key and len(given.ca_key) != 65:
        parser.error("--ca-key is the key of a P-256 CA")
    network = given.address and (str(given.address.ip), given.address.network.prefixlen, str(given.gateway))
    password = given.password_file and given.password_file.read_bytes().split(b"\n")[0]
    if password and len(password) > 255:
        parser.error("the password is longer than 255 bytes")
    host, port = given.broker
    settings = Settings(
        port, given.key or given.ca_key, authority=given.ca_key is not None, server_name=given.name, client_id=given.id,
        host=host, mac=given.mac, network=network, user=given.user, password=password, interval_s=given.every,
        listen_ms=given.listen_ms, wakes=given.wake_ups, resume=not given.no_resume)
    given.file.write_bytes(settings.page())


if __name__ == "__main__":
    main(sys.argv[1:])
