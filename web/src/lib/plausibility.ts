// Whether a value read by a person can be right: typing and register errors are found at the meter,
// where they can be put right. The server checks again.

import type { Meter } from '../types';
import { decimal, quantity } from './format';

export type Verdict =
  | { kind: 'fine'; value: number }
  /** May be right, but the reader has to say so. */
  | { kind: 'doubtful'; value: number; reason: string }
  /** Cannot be sent. */
  | { kind: 'wrong'; reason: string };

type Checked = Pick<Meter, 'expected' | 'last' | 'register_digits' | 'unit'>;

export function check(text: string, meter: Checked): Verdict {
  const value = parseValue(text);
  if (value === null) {
    return { kind: 'wrong', reason: text.trim() === '' ? 'Type what the meter shows.' : NO_VALUE };
  }
  const { register_digits: digits, last, expected, unit } = meter;
  if (digits !== null && value >= 10 ** digits) {
    return { kind: 'wrong', reason: `This meter's register has only ${digits} digits before the point.` };
  }
  if (last && last.unit === unit && value < last.value) {
    const reason = `Lower than the last reading, ${quantity(last.value, last.unit)}. Meters do not run backwards.`;
    return { kind: 'doubtful', value, reason };
  }
  if (expected && (value < expected.low || value > expected.high)) {
    const side = value < expected.low ? 'Lower' : 'Higher';
    const reason = `${side} than expected (${decimal(expected.low)} to ${quantity(expected.high, unit)}).`;
    return { kind: 'doubtful', value, reason };
  }
  return { kind: 'fine', value };
}

const NO_VALUE = 'Digits and one decimal point only.';

/** What is wrong with a field for a register's value. */
export function noValue(text: string): string | null {
  return text !== '' && parseValue(text) === null ? NO_VALUE : null;
}

/** A decimal number with a point or a comma; spaces between digits are ignored. */
export function parseValue(text: string): number | null {
  const plain = text.replace(/[\s\u00a0]/g, '').replace(',', '.');
  if (!/^\d{1,12}(\.\d{0,6})?$/.test(plain)) return null;
  return Number(plain);
}
