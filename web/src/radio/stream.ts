// A receiver's stream of bytes as frames: the sticks' own framings (iM871A, AMB8465) or lines, found out
// from the first byte. After damage the next frame is looked for; at most one frame or line is held.

import { FrameError, strip } from './link';
import { culDbm, parseLine, type Received } from './lines';

const MOST_LINE = 2048;
const IM871A = 0xa5;
const AMB8465 = 0xff;

/** What a look at the buffer gave: so many bytes are done with, and perhaps a frame. `null`: more needed. */
type Step = { used: number; received?: Received | null; wrong?: string } | null;

export class Stream {
  private buffer = new Uint8Array(0);
  private kind: 'unknown' | 'im871a' | 'amb8465' | 'lines' = 'unknown';

  /** Frames that are whole now; what is wrong is counted by `onWrong`. */
  feed(bytes: Uint8Array, onWrong: (reason: string) => void = () => undefined): Received[] {
    const joined = new Uint8Array(this.buffer.length + bytes.length);
    joined.set(this.buffer);
    joined.set(bytes, this.buffer.length);
    const out: Received[] = [];
    let at = 0;
    while (at < joined.length) {
      const step = this.step(joined.subarray(at));
      if (!step) break;
      at += step.used;
      if (step.wrong) onWrong(step.wrong);
      if (step.received) out.push(step.received);
    }
    this.buffer = joined.slice(at);
    return out;
  }

  private step(bytes: Uint8Array): Step {
    const first = bytes[0] ?? 0;
    if (this.kind === 'unknown') {
      if (first === 10 || first === 13 || first === 32) return { used: 1 };
      this.kind = first === IM871A ? 'im871a' : first === AMB8465 ? 'amb8465' : 'lines';
    }
    try {
      if (this.kind === 'im871a') return im871a(bytes);
      if (this.kind === 'amb8465') return amb8465(bytes);
      return line(bytes);
    } catch (error) {
      if (!(error instanceof Wrong)) throw error;
      return { used: error.used, wrong: error.message };
    }
  }
}

class Wrong extends Error {
  constructor(
    readonly used: number,
    message: string,
  ) {
    super(message);
  }
}

function guarded(used: number, frame: () => Received | null): Step {
  try {
    return { used, received: frame() };
  } catch (error) {
    if (error instanceof FrameError) throw new Wrong(used, error.message);
    throw error;
  }
}

function line(bytes: Uint8Array): Step {
  const end = bytes.indexOf(10);
  if (end < 0) {
    if (bytes.length > MOST_LINE) throw new Wrong(bytes.length, 'a line without an end');
    return null;
  }
  return guarded(end + 1, () => parseLine(new TextDecoder().decode(bytes.subarray(0, end))));
}

/** `A5`, flags and endpoint, message, length, payload, then time, level and checksum as the flags say. */
function im871a(bytes: Uint8Array): Step {
  if (bytes[0] !== IM871A) throw outOfStep(bytes, IM871A);
  const [, flags = 0, message, length] = bytes;
  if (length === undefined) return null;
  const levelAt = 4 + length + (flags & 0x20 ? 4 : 0);
  const sumAt = levelAt + (flags & 0x40 ? 1 : 0);
  const used = sumAt + (flags & 0x80 ? 2 : 0);
  if (bytes.length < used) return null;
  if (
    flags & 0x80 &&
    x25(bytes.subarray(1, sumAt)) !== ((bytes[sumAt] ?? 0) | ((bytes[sumAt + 1] ?? 0) << 8))
  ) {
    throw outOfStep(bytes, IM871A);
  }
  if ((flags & 0x0f) !== 2 || message !== 3) return { used };
  return guarded(used, () => ({
    frame: strip(bytes.slice(3, 4 + length), 'stripped'),
    mode: null,
    // 45 is -100 dBm and 205 is -20 dBm, in a straight line.
    rssiDbm: flags & 0x40 ? (bytes[levelAt] ?? 0) / 2 - 122.5 : null,
  }));
}

/** `FF`, command, length, payload, perhaps a level, exclusive or of all before. */
function amb8465(bytes: Uint8Array): Step {
  if (bytes[0] !== AMB8465) throw outOfStep(bytes, AMB8465);
  const length = bytes[2];
  if (length === undefined) return null;
  const end = 3 + length;
  const fits = (at: number) => bytes.subarray(0, at).reduce((sum, byte) => sum ^ byte, 0) === bytes[at];
  if (bytes.length <= end) return null;
  let hasLevel = false;
  if (!fits(end)) {
    if (bytes.length <= end + 1) return null;
    if (!fits(end + 1)) throw outOfStep(bytes, AMB8465);
    hasLevel = true;
  }
  const used = end + (hasLevel ? 2 : 1);
  if (bytes[1] !== 3) return { used };
  return guarded(used, () => ({
    frame: strip(bytes.slice(2, end), 'stripped'),
    mode: null,
    rssiDbm: hasLevel ? culDbm(bytes[end] ?? 0) : null,
  }));
}

function outOfStep(bytes: Uint8Array, start: number): Wrong {
  const next = bytes.indexOf(start, 1);
  return new Wrong(next < 0 ? bytes.length : next, 'bytes that are not a frame');
}

/** CRC-16/X-25, the stick's checksum. */
function x25(bytes: Uint8Array): number {
  let sum = 0xffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >> 1) ^ 0x8408 : sum >> 1;
  }
  return ~sum & 0xffff;
}
