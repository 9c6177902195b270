import { describe, expect, it } from 'vitest';
import { meter } from './helpers';
import { problemText } from '../../src/data/api';
import { ago, signalBars } from '../../src/lib/format';
import { metresBetween, streetName, streetsOf } from '../../src/lib/geo';
import { check, parseValue } from '../../src/lib/plausibility';

describe('plausibility', () => {
  const known = meter('a', {
    register_digits: 5,
    expected: { low: 100, high: 120 },
    last: { value: 99, unit: 'm3', at: '2026-01-01T00:00:00Z', method: 'manual' },
  });

  it.each([
    ['110', 'fine'],
    ['110,5', 'fine'],
    ['100', 'fine'],
    ['1 10', 'fine'],
    ['99.5', 'doubtful'],
    ['121', 'doubtful'],
    ['98', 'doubtful'],
    ['100000', 'wrong'],
    ['', 'wrong'],
    ['-5', 'wrong'],
    ['1e3', 'wrong'],
    ['1.2.3', 'wrong'],
  ])('%j is %s', (text, kind) => {
    expect(check(text, known).kind).toBe(kind);
  });

  it('says why', () => {
    expect(check('98', known)).toMatchObject({
      reason: expect.stringContaining('do not run backwards') as string,
    });
    expect(check('500', known)).toMatchObject({
      value: 500,
      reason: 'Higher than expected (100 to 120 m³).',
    });
  });

  it('takes anything for a meter of which nothing is known', () => {
    expect(check('7', meter('b', { register_digits: null }))).toEqual({ kind: 'fine', value: 7 });
  });

  it('does not compare different units', () => {
    const litres = meter('c', { unit: 'kWh', last: known.last });
    expect(check('1', litres).kind).toBe('fine');
  });

  it('keeps the digits', () => {
    expect(parseValue('00123.456')).toBe(123.456);
    expect(parseValue('1.1234567')).toBeNull();
  });
});

describe('words', () => {
  it('tells times as people do', () => {
    const now = Date.parse('2026-01-02T12:00:00Z');
    expect(ago('2026-01-02T11:59:58Z', now)).toBe('just now');
    expect(ago('2026-01-02T11:59:00Z', now)).toBe('1 min ago');
    expect(ago('2026-01-02T09:00:00Z', now)).toBe('3 h ago');
    expect(ago('nonsense', now)).toBe('unknown');
  });

  it('turns levels into bars', () => {
    expect([null, -120, -100, -80, -50].map(signalBars)).toEqual([0, 0, 1, 2, 4]);
  });

  it('reads problems', () => {
    const problem = {
      title: 'Invalid',
      detail: 'Not stored.',
      errors: [{ field: 'value', detail: 'negative' }],
    };
    expect(problemText(problem, 422)).toBe('Not stored. value: negative');
    expect(problemText(null, 502)).toBe('The server answered 502.');
  });
});

describe('places', () => {
  it('measures metres', () => {
    expect(metresBetween({ lat: 50, lon: 8 }, { lat: 50.001, lon: 8 })).toBeCloseTo(111.2, 0);
  });

  it('draws streets from the meters along them', () => {
    const along = Array.from({ length: 6 }, (_, at) =>
      meter(`m${at}`, {
        street: `Mill Lane ${at + 1}`,
        place: { lat: 50 + at * 0.0003, lon: 8 + (at % 2) * 0.0001 },
      }),
    );
    const alone = meter('x', { street: 'High Street 1', place: { lat: 50, lon: 8 } });
    const streets = streetsOf([...along.reverse(), alone]);
    expect(streets.map((street) => [street.name, street.line.length])).toEqual([['Mill Lane', 6]]);
    expect(streetName('Am Berg 12b')).toBe('Am Berg');
  });
});
