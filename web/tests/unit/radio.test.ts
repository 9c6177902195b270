import { describe, expect, it } from 'vitest';
import { crc, fromHex, toHex } from '../../src/radio/bytes';
import { FrameError, meterOf, sender, strip } from '../../src/radio/link';
import { parseLine } from '../../src/radio/lines';
import { Stream } from '../../src/radio/stream';

/** A plain frame of a water meter, SEN 33225544. */
const HEX = '1844AE4C4455223368077A55000000041389E20100023B0000';
const bytes = (hex: string) => fromHex(hex) as Uint8Array;
const FRAME = bytes(HEX);

/** The frame with the checksums of format A. */
function dressed(): Uint8Array {
  const out: number[] = [];
  for (let at = 0; at < FRAME.length;) {
    const block = FRAME.subarray(at, at + (at === 0 ? 10 : 16));
    out.push(...block, crc(block) >> 8, crc(block) & 0xff);
    at += block.length;
  }
  return Uint8Array.from(out);
}

function im871a(level: number): Uint8Array {
  const message = [0xe2, 0x03, ...FRAME, 1, 2, 3, 4, level];
  let sum = 0xffff;
  for (const byte of message) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >> 1) ^ 0x8408 : sum >> 1;
  }
  sum = ~sum & 0xffff;
  return Uint8Array.from([0xa5, ...message, sum & 0xff, sum >> 8]);
}

function amb8465(level?: number): Uint8Array {
  const message = [0xff, 0x03, ...FRAME, ...(level === undefined ? [] : [level])];
  return Uint8Array.from([...message, message.reduce((sum, byte) => sum ^ byte, 0)]);
}

const text = (line: string) => new TextEncoder().encode(line);

describe('link frames', () => {
  it('has the checksum of the catalogue', () => {
    expect(crc(text('123456789'))).toBe(0xc2b7);
  });

  it('tells whose frame it is', () => {
    expect(sender(FRAME)).toMatchObject({
      manufacturer: 'SEN',
      number: '33225544',
      version: 0x68,
      type: 0x07,
    });
    expect(sender(FRAME).address).toBe('SEN-33225544-68-07');
  });

  it('names the meter behind a radio adapter', () => {
    const adapter = bytes('1844AE4C4455223368377278563412' + '2D2C1B16' + '00000000' + '0F0F');
    adapter[0] = adapter.length - 1;
    expect(meterOf(adapter)).toMatchObject({
      manufacturer: 'KAM',
      number: '12345678',
      version: 0x1b,
      type: 0x16,
    });
  });

  it('takes checksums out and finds damage', () => {
    const wire = dressed();
    expect(toHex(strip(wire, 'a'))).toBe(HEX.toLowerCase());
    for (let at = 1; at < wire.length; at += 1) {
      const damaged = Uint8Array.from(wire);
      damaged[at] = (damaged[at] ?? 0) ^ 1;
      expect(() => strip(damaged, 'a')).toThrow(FrameError);
    }
  });

  it('refuses what is cut, too long or empty', () => {
    expect(() => strip(FRAME.subarray(0, 20), 'stripped')).toThrow('cut');
    expect(() => strip(bytes(`${HEX}00`), 'stripped')).toThrow('too many');
    expect(() => strip(new Uint8Array(0), 'stripped')).toThrow('too short');
    expect(() => strip(bytes('0B44AE4C44'), 'b')).toThrow(FrameError);
  });
});

describe('lines', () => {
  it('reads rtl_wmbus', () => {
    const received = parseLine(`T1;1;1;2020-01-01 10:00:00.000;97;148;33225544;0x${HEX}`);
    expect(received).toMatchObject({ mode: 'T1', rssiDbm: null });
    expect(toHex(received?.frame ?? FRAME)).toBe(HEX.toLowerCase());
    expect(() => parseLine(`T1;0;1;2020-01-01 10:00:00.000;97;148;33225544;0x${HEX}`)).toThrow('checksum');
  });

  it('reads CUL with and without a level', () => {
    expect(parseLine(`b${toHex(dressed())}C080`)?.rssiDbm).toBe(-138);
    expect(parseLine(`b${toHex(dressed())}`)?.rssiDbm).toBeNull();
  });

  it('skips comments and says what is wrong', () => {
    expect(parseLine('# a comment')).toBeNull();
    expect(() => parseLine('what is this')).toThrow(FrameError);
  });
});

describe('streams', () => {
  const streams: [string, Uint8Array, number | null][] = [
    ['im871a', im871a(45), -100],
    ['amb8465', amb8465(0xb0), -114],
    ['amb8465 without level', amb8465(), null],
    ['cul', text(`b${toHex(dressed())}C000\r\n`), -74],
    ['rtl_wmbus', text(`T1;1;1;2020-01-01 10:00:00.000;97;148;33225544;0x${HEX}\n`), null],
    ['hex', text(`${HEX}\n`), null],
  ];

  it.each(streams)('reads %s in pieces of any size', (_name, stream, rssi) => {
    for (const size of [1, 2, 7, 1000]) {
      const reader = new Stream();
      const twice = Uint8Array.from([...stream, ...stream]);
      const got = [];
      for (let at = 0; at < twice.length; at += size) got.push(...reader.feed(twice.subarray(at, at + size)));
      // The last frame of a stick that may send a level or not is known only with the next byte.
      expect(got.map((one) => one.rssiDbm)).toEqual([rssi, rssi]);
      expect(got.map((one) => toHex(one.frame))).toEqual([HEX.toLowerCase(), HEX.toLowerCase()]);
    }
  });

  it.each(streams)('finds the next frame of %s after damage', (name, stream) => {
    const isLines = !/im871a|amb/.test(name);
    const reader = new Stream();
    const wrong: string[] = [];
    reader.feed(stream);
    const noise = isLines ? text('noise\n') : Uint8Array.from([1, 2, 3]);
    const got = reader.feed(Uint8Array.from([...noise, ...stream]), (reason) => wrong.push(reason));
    expect(got).toHaveLength(1);
    expect(wrong.length).toBeGreaterThan(0);
  });

  it('does not hold a line without an end', () => {
    const reader = new Stream();
    const wrong: string[] = [];
    for (let times = 0; times < 9; times += 1)
      reader.feed(text('A'.repeat(1000)), (reason) => wrong.push(reason));
    expect(wrong.length).toBeGreaterThan(0);
    reader.feed(text('\n'));
    expect(reader.feed(text(`${HEX}\n`))).toHaveLength(1);
  });
});
