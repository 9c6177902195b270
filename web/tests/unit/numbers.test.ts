// What numbers on screens are about: the limit of a chart, the tour that is counted, the age of a round-trip time.

import { beforeEach, describe, expect, test } from 'vitest';
import { rtt } from '../../src/broker/lib';
import { yRange } from '../../src/homes/series-chart';
import { countedSince, forgetHeard } from '../../src/live/heard';

const kept = new Map<string, string>();
beforeEach(() => {
  kept.clear();
  Object.defineProperty(globalThis, 'localStorage', {
    configurable: true,
    value: {
      getItem: (key: string) => kept.get(key) ?? null,
      setItem: (key: string, value: string) => kept.set(key, value),
      removeItem: (key: string) => kept.delete(key),
    },
  });
});

test('a limit is inside the chart, above or below all values', () => {
  for (const [low, high, limit] of [
    [20, 30, 8],
    [20, 30, 70],
    [-5, -1, 4],
    [20, 21, 19],
  ] as const) {
    const [bottom, top] = yRange(low, high, limit);
    expect(bottom).toBeLessThanOrEqual(Math.min(low, limit));
    expect(top).toBeGreaterThanOrEqual(Math.max(high, limit));
  }
});

describe('a tour', () => {
  const HOUR_MS = 3_600_000;
  test('goes on when the page is loaded again', () => {
    expect(countedSince(100 * HOUR_MS)).toBe(100 * HOUR_MS);
    expect(countedSince(103 * HOUR_MS)).toBe(100 * HOUR_MS);
  });
  test('ends at a reset, and after half a day', () => {
    countedSince(100 * HOUR_MS);
    expect(countedSince(113 * HOUR_MS)).toBe(113 * HOUR_MS);
    forgetHeard();
    expect(countedSince(114 * HOUR_MS)).toBe(114 * HOUR_MS);
  });
});

test('the round-trip time of an idle client has its age', () => {
  const path = { rtt_us: 42_000, measured_ms: 1_000_000 };
  expect(rtt(path, 1_005_000)).toBe('42 ms');
  expect(rtt(path, 1_600_000)).toBe('42 ms, 10 min ago');
});
