// Link frames of wireless M-Bus (EN 13757-4, 12): whose they are, without any key, and the frame without its
// checksums, which is what the server gets. What a meter said stays encrypted here.

import { crc } from './bytes';

/** How checksums lie in a frame: format A, format B, or taken out by the receiver. */
export type Format = 'a' | 'b' | 'stripped';

export interface Sender {
  manufacturer: string;
  /** Eight digits, as printed on the meter. */
  number: string;
  version: number;
  type: number;
  /** `KAM-12345678-16-1b`, as the platform writes it. */
  address: string;
}

export class FrameError extends Error {
  override readonly name = 'FrameError';
}

const HEADER = 10;
const BLOCK = 16;

/** The frame without checksums. Throws a FrameError for what is cut or damaged. */
export function strip(bytes: Uint8Array, format: Format): Uint8Array {
  const length = bytes[0] ?? 0;
  if (length < HEADER - 1) throw new FrameError('too short for a frame');
  if (format === 'stripped') return exactly(bytes, length + 1);
  return format === 'a' ? stripA(bytes, length) : stripB(bytes, length);
}

function exactly(bytes: Uint8Array, want: number): Uint8Array {
  if (bytes.length < want) throw new FrameError(`cut: ${bytes.length} of ${want} bytes`);
  if (bytes.length > want) throw new FrameError(`${bytes.length - want} bytes too many`);
  return bytes;
}

function checked(bytes: Uint8Array, from: number, to: number): Uint8Array {
  const block = bytes.subarray(from, to);
  const sum = ((bytes[to] ?? 0) << 8) | (bytes[to + 1] ?? 0);
  if (crc(block) !== sum) throw new FrameError('damaged in transmission');
  return block;
}

/** A checksum after the first 10 bytes and after each 16 more. */
function stripA(bytes: Uint8Array, length: number): Uint8Array {
  const bare = length + 1;
  exactly(bytes, bare + 2 * (1 + Math.ceil((bare - HEADER) / BLOCK)));
  const out = new Uint8Array(bare);
  let [from, to] = [0, 0];
  while (to < bare) {
    const size = Math.min(to === 0 ? HEADER : BLOCK, bare - to);
    out.set(checked(bytes, from, from + size), to);
    from += size + 2;
    to += size;
  }
  return out;
}

/** The length counts the checksums: one at the end, and one at byte 126 of longer frames. */
function stripB(bytes: Uint8Array, length: number): Uint8Array {
  const total = length + 1;
  exactly(bytes, total);
  const first = Math.min(total, 128);
  if (total < HEADER + 2 || (total > 128 && total < 131)) throw new FrameError('too short for a frame');
  const parts = [checked(bytes, 0, first - 2)];
  if (total > 128) parts.push(checked(bytes, 128, total - 2));
  const out = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    out.set(part, at);
    at += part.length;
  }
  out[0] = out.length - 1;
  return out;
}

/** Whose frame this is; the frame must be without checksums. */
export function sender(frame: Uint8Array): Sender {
  if (frame.length < HEADER) throw new FrameError('too short for an address');
  return fromLink(frame.subarray(2, HEADER)) ?? fail();
}

/**
 * The meter a frame is about. Behind a radio adapter the long transport header (EN 13757-7, 5.4) names
 * another one than the link layer; it stands outside the encryption.
 */
export function meterOf(frame: Uint8Array): Sender {
  const link = sender(frame);
  const LONG_HEADERS = [0x72, 0x73, 0x6b];
  if (!LONG_HEADERS.includes(frame[HEADER] ?? 0) || frame.length < HEADER + 9) return link;
  const long = frame.subarray(HEADER + 1, HEADER + 9);
  // Number first here, manufacturer first in the link layer.
  const order = [4, 5, 0, 1, 2, 3, 6, 7].map((at) => long[at] ?? 0);
  return fromLink(Uint8Array.from(order)) ?? link;
}

function fail(): never {
  throw new FrameError('no address');
}

function fromLink(bytes: Uint8Array): Sender | null {
  const [m0 = 0, m1 = 0, ...rest] = bytes;
  const code = ((m1 << 8) | m0) & 0x7fff;
  const letters = [10, 5, 0].map((shift) => (code >> shift) & 0x1f);
  if (letters.some((letter) => letter < 1 || letter > 26)) return null;
  const manufacturer = String.fromCharCode(...letters.map((letter) => 64 + letter));
  const hex = (byte: number) => byte.toString(16).padStart(2, '0');
  const number = rest.slice(0, 4).reverse().map(hex).join('').toUpperCase();
  const [version = 0, type = 0] = rest.slice(4);
  return {
    manufacturer,
    number,
    version,
    type,
    address: `${manufacturer}-${number}-${hex(version)}-${hex(type)}`,
  };
}
