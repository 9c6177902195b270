import { describe, expect, it, vi } from 'vitest';
import { meter } from './helpers';
import { problemOf } from '../../src/data/api';
import { ago, signalBars } from '../../src/lib/format';
import { metresBetween, streetName, streetsOf } from '../../src/lib/geo';
import { check, parseValue } from '../../src/lib/plausibility';
import { found } from '../../src/lib/search';
import { axes, timeLabels, valueLabels } from '../../src/ui/axes';

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
    expect(problemOf(problem, 422).message).toBe('Not stored. value: negative');
    expect(problemOf(null, 502).message).toBe('The server answered 502.');
  });

  it('says what is wrong once, by the name on the screen', () => {
    const detail = 'there is no such user in this twin';
    const problem = { detail: `assignee: ${detail}`, errors: [{ field: 'assignee', detail }] };
    expect(problemOf(problem, 422).message).toBe(`Reader: ${detail}`);
  });
});

describe('search', () => {
  const town = [112, 120, 12, 122, 1, 2].map((number) =>
    meter(`m${number}`, { street: `Gannet Hill ${number}`, serial: `2100${number}` }),
  );
  const streets = (text: string) => found(town, text).map((one) => one.street);

  it('takes house numbers as numbers', () => {
    expect(streets('Gannet Hill 12')).toEqual(['Gannet Hill 12']);
    expect(streets('gannet 1')).toEqual(['Gannet Hill 1']);
  });

  it('puts what is exactly meant first, and then goes along the street', () => {
    expect(streets('gannet')).toEqual([1, 2, 12, 112, 120, 122].map((number) => `Gannet Hill ${number}`));
    expect(streets('2100120')).toEqual(['Gannet Hill 120']);
    expect(streets('100112')).toEqual(['Gannet Hill 112']);
    expect(streets('harbour')).toEqual([]);
  });

  it('finds 12b under 12', () => {
    expect(found([meter('a', { street: 'Am Berg 12b' })], 'berg 12')).toHaveLength(1);
  });
});

describe('axes', () => {
  it('have as many decimals as their steps, and the browser’s notation', () => {
    expect(valueLabels([0, 0.2, 0.4], 0.2)).toEqual(['0.0', '0.2', '0.4']);
    expect(valueLabels([0, 500, 1000], 500)).toEqual(['0', '500', '1,000']);
  });

  it('say the day where it changes', () => {
    const midnight = new Date(2026, 10, 15).getTime() / 1000;
    const labels = timeLabels([midnight - 7200, midnight, midnight + 7200], 7200);
    expect(labels.map((label) => label.includes('\n'))).toEqual([true, true, false]);
    expect(timeLabels([midnight], 86_400)[0]).toContain('15');
  });
});

describe('axes of charts', () => {
  it('say what unit the values have', () => {
    vi.stubGlobal('getComputedStyle', () => ({ fontFamily: 'sans-serif', getPropertyValue: () => '#000' }));
    const labels = axes({} as HTMLElement, 'Bq/m³').map((axis) => axis.label);
    vi.unstubAllGlobals();
    expect(labels).toEqual([undefined, 'Bq/m³']);
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
    // Houses on both sides of a straight street make a straight line.
    expect(streets.map((street) => [street.name, street.line.length])).toEqual([['Mill Lane', 2]]);
    expect(streetName('Am Berg 12b')).toBe('Am Berg');
  });
});
