// Bytes and hexadecimal digits, and the checksum of EN 13757-4, 12.5.

export function fromHex(digits: string): Uint8Array | null {
  if (digits.length % 2 !== 0 || !/^[0-9a-f]*$/i.test(digits)) return null;
  const bytes = new Uint8Array(digits.length / 2);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = parseInt(digits.slice(2 * at, 2 * at + 2), 16);
  return bytes;
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** CRC-16 with the polynomial 0x3D65, inverted. */
export function crc(bytes: Uint8Array): number {
  let sum = 0;
  for (const byte of bytes) {
    sum ^= byte << 8;
    for (let bit = 0; bit < 8; bit += 1)
      sum = sum & 0x8000 ? ((sum << 1) ^ 0x3d65) & 0xffff : (sum << 1) & 0xffff;
  }
  return ~sum & 0xffff;
}
