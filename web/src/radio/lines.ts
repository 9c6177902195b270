// Receivers that give a line a frame: rtl_wmbus, CUL (culfw), and plain hexadecimal digits.

import { fromHex } from './bytes';
import { FrameError, strip } from './link';

export interface Received {
  /** Without checksums. */
  frame: Uint8Array;
  mode: string | null;
  rssiDbm: number | null;
}

/** Null for a line that holds nothing; throws a FrameError for one that is wrong. */
export function parseLine(raw: string): Received | null {
  const line = raw.trim();
  if (line === '' || line.startsWith('#')) return null;
  if (line.includes(';')) return rtlWmbus(line);
  if (line.startsWith('b') && !isFrame(line)) return cul(line);
  return { frame: strip(hex(line.replace(/^0x/, '')), 'stripped'), mode: null, rssiDbm: null };
}

/** `MODE;CRC_OK;3OUTOF6_OK;TIME;RSSI;RSSI;ID;0xHEX`; its RSSI has no unit and is left out. */
function rtlWmbus(line: string): Received {
  const [mode, isGood, , , , , , digits] = line.split(';').slice(-8);
  if (!digits?.startsWith('0x')) throw new FrameError('not a line of rtl_wmbus');
  if (isGood !== '1') throw new FrameError('the receiver found a wrong checksum');
  return {
    frame: strip(hex(digits.slice(2)), 'stripped'),
    mode: /^\w{1,4}$/.test(mode ?? '') ? (mode ?? null) : null,
    rssiDbm: null,
  };
}

/** `bHEX` in format A or `bYHEX` in format B, with link quality and level behind it. */
function cul(line: string): Received {
  const format = line.startsWith('bY') ? 'b' : 'a';
  const bytes = hex(line.slice(format === 'b' ? 2 : 1));
  const bare = (bytes[0] ?? 0) + 1;
  const wire = format === 'b' ? bare : bare + 2 * (1 + Math.ceil(Math.max(0, bare - 10) / 16));
  const hasLevel = bytes.length === wire + 2;
  const rssiDbm = hasLevel ? culDbm(bytes[wire + 1] ?? 0) : null;
  return { frame: strip(hasLevel ? bytes.subarray(0, wire) : bytes, format), mode: null, rssiDbm };
}

/** The level of a Texas Instruments radio: half decibels, signed. */
export function culDbm(level: number): number {
  return ((level << 24) >> 24) / 2 - 74;
}

/** Whether digits are a frame by their length, so that a first `b` is a digit. */
function isFrame(line: string): boolean {
  const bytes = fromHex(line);
  return bytes !== null && bytes.length === (bytes[0] ?? 0) + 1;
}

function hex(digits: string): Uint8Array {
  const bytes = fromHex(digits.replace(/[\s|_]/g, ''));
  if (!bytes) throw new FrameError('not hexadecimal');
  return bytes;
}
