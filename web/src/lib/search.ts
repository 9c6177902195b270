// Which meters a typed text means, and in which order: house numbers are numbers, so that 12 is not 112. Pure.

import type { Meter } from '../types';

type Named = Pick<Meter, 'street' | 'serial' | 'address' | 'id'>;

/** Shorter parts of numbers say nothing. */
const LEAST_DIGITS = 3;

export function wordsOf(text: string): string[] {
  return text
    .toLowerCase()
    .split(/[\s,]+/)
    .filter(Boolean);
}

/**
 * How well a meter fits, 0 best; null when it does not. A number fits a whole house number (`12` and `12b`) best;
 * otherwise it has to be a part of a serial number or address.
 */
export function fit(meter: Named, words: readonly string[]): number | null {
  const street = wordsOf(meter.street ?? '');
  const numbers = [meter.serial, meter.address, meter.id].map((text) => (text ?? '').toLowerCase());
  let worst = 0;
  for (const word of words) {
    const found = fitWord(street, numbers, word);
    if (found === null) return null;
    worst = Math.max(worst, found);
  }
  if (worst > 0) return worst;
  return words.join(' ') === street.join(' ') || numbers.includes(words.join(' ')) ? 0 : 1;
}

function fitWord(street: readonly string[], numbers: readonly string[], word: string): number | null {
  if (street.includes(word) || numbers.includes(word)) return 0;
  const isNumber = /^\d+$/.test(word);
  if (street.some((part) => (isNumber ? part.replace(/\D+$/, '') === word : part.startsWith(word)))) return 2;
  const isLong = !isNumber || word.length >= LEAST_DIGITS;
  if (isLong && numbers.some((number) => number.includes(word))) return 3;
  return !isNumber && street.some((part) => part.includes(word)) ? 4 : null;
}

/** Those that fit, best first; among equals in the order of `nearer`, then of streets. */
export function found<T extends Named>(
  meters: Iterable<T>,
  text: string,
  nearer: (a: T, b: T) => number = () => 0,
): T[] {
  const words = wordsOf(text);
  const fitting: [number, T][] = [];
  for (const meter of meters) {
    const rank = fit(meter, words);
    if (rank !== null) fitting.push([rank, meter]);
  }
  const street = (meter: T) => meter.street ?? meter.serial ?? meter.id;
  const byStreet = (a: T, b: T) => street(a).localeCompare(street(b), undefined, { numeric: true });
  return fitting
    .sort(([rankA, a], [rankB, b]) => rankA - rankB || nearer(a, b) || byStreet(a, b))
    .map(([, meter]) => meter);
}
