"""A device in QEMU: its page of settings, its ticket, the command line of its board. What runs it is
elsewhere: run.py shows one to people, tests/interop/test_firmware.py tests one."""

import ipaddress
import pathlib
import struct

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
