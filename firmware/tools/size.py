"""make firmware: what an image takes, by part, and whether it keeps its budget.

    size.py IMAGE                 an ELF image of a board: flash and static RAM by part, judged
    size.py --image LABEL IMAGE   the same image with options: its flash and static RAM, not judged
    size.py --core LABEL IMAGE    the client alone, for another processor: the same

The parts are found by the crates' names in the symbols; what has no symbol (constants, mostly) is told as
such. Exit status 1 if the budget is not kept."""

import collections
import re
import struct
import sys

# What the image may take: pages that hold settings and ticket count as flash.
FLASH_BUDGET = 48 * 1024
RAM_BUDGET = 16 * 1024
PAGES = 2 * 1024

# The first that matches a symbol is its part.
PARTS = [
    ("X25519, Ed25519", r"curve25519|x25519|ed25519|fulmar_tiny.{0,8}crypto.{0,8}signature|subtle"),
    ("P-256", r"p256|elliptic_curve|ecdsa|primefield|primeorder|crypto_bigint|wnaf|rfc6979"),
    ("SHA-2, HMAC, HKDF", r"sha2|hmac|hkdf|digest|block_buffer|fulmar_tiny.{0,8}crypto.{0,8}(hash|hkdf)"),
    ("AES-128-GCM", r"\baes|_aes|3aes|ghash|polyval|cipher|fulmar_tiny.{0,8}crypto"),
    ("TLS 1.3", r"fulmar_tiny.{0,8}(tls|x509)"),
    ("MQTT", r"fulmar_tiny.{0,8}mqtt"),
    ("IP: ARP, UDP, DHCP", r"fulmar_tiny_ip"),
    ("QUIC", r"fulmar_tiny"),
    ("sensor", r"fulmar_sensor"),
    ("board: drivers, startup", r"board_lm3s6965|cortex_m|^(main|Reset|HardFault|SysTick|DefaultHandler|__)"),
    ("shared by several parts", r"^OUTLINED"),
    ("core library", r"core|compiler_builtins|^(mem|__aeabi)"),
]
SHF_WRITE, SHF_ALLOC = 1, 2
SHT_NOBITS = 8
STT_OBJECT, STT_FUNC = 1, 2


class Elf:
    """The little of a 32-bit little-endian ELF file that is needed: sections and symbols."""

    def __init__(self, data: bytes):
        if data[:6] != b"\x7fELF\x01\x01":
            raise ValueError("not a 32-bit little-endian ELF file")
        offset, = struct.unpack_from("<I", data, 32)
        size, count, names = struct.unpack_from("<3H", data, 46)
        headers = [struct.unpack_from("<10I", data, offset + index * size) for index in range(count)]
        text = lambda start: data[start:data.index(b"\0", start)].decode()
        self.sections = [(text(headers[names][4] + header[0]), *header[1:]) for header in headers]
        self.symbols = []
        for _, kind, _, _, start, length, link, *_ in self.sections:
            if kind != 2:
                continue
            strings = self.sections[link][4]
            for at in range(start, start + length, 16):
                name, address, size, info, _, section = struct.unpack_from("<3I2BH", data, at)
                if info & 15 in (STT_OBJECT, STT_FUNC) and size and section < len(self.sections):
                    self.symbols.append((text(strings + name), address & ~1, size, section))


def part_of(symbol: str) -> str:
    return next((part for part, pattern in PARTS if re.search(pattern, symbol)), "other")


def measure(elf: Elf):
    """Flash and RAM: totals, and by part."""
    flash, ram = collections.Counter(), collections.Counter()
    total_flash = total_ram = 0
    for index, (name, kind, flags, address, _, size, *_) in enumerate(elf.sections):
        if not flags & SHF_ALLOC or not size:
            continue
        in_flash, in_ram = kind != SHT_NOBITS, bool(flags & SHF_WRITE)
        total_flash += size * in_flash
        total_ram += size * in_ram
        left, seen = size, set()
        for symbol, at, length, section in elf.symbols:
            # Functions that are the same code have one place and several names.
            if section != index or (at, length) in seen:
                continue
            seen.add((at, length))
            left -= length
            if in_flash:
                flash[part_of(symbol)] += length
            if in_ram:
                ram[part_of(symbol)] += length
        if in_flash:
            flash["constants, padding"] += max(left, 0)
        elif in_ram:
            ram["padding"] += max(left, 0)
    return total_flash, flash, total_ram, ram


def main(arguments: list[str]) -> int:
    kind = label = None
    if arguments[:1] in (["--core"], ["--image"]):
        kind, label, arguments = arguments[0], arguments[1], arguments[2:]
    with open(arguments[0], "rb") as file:
        total_flash, flash, total_ram, ram = measure(Elf(file.read()))
    if kind:
        total_flash += PAGES * (kind == "--image")
        print(f"{label}: {total_flash:,} bytes of flash, {total_ram:,} of static RAM")
        return 0
    print(f"{'part':28}{'flash':>9}{'RAM':>9}")
    for part in sorted(flash.keys() | ram.keys(), key=lambda part: -flash[part]):
        print(f"{part:28}{flash[part]:9,}{ram[part] or '':>9}")
    print(f"{'settings, ticket (pages)':28}{PAGES:9,}")
    total_flash += PAGES
    print(f"{'all':28}{total_flash:9,}{total_ram:9,}")
    print(f"{'budget':28}{FLASH_BUDGET:9,}{RAM_BUDGET:9,}")
    print("The stack is not in it: make firmware-run and the tests say how much of its 12 KiB was used.")
    if total_flash > FLASH_BUDGET or total_ram > RAM_BUDGET:
        print("It does not keep its budget.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
