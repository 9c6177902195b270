import { describe, expect, it } from 'vitest';
import {
  byNeed,
  columns,
  duration,
  measured,
  pointsOfHomes,
  stateWord,
  withAlert,
  withValue,
} from '../../src/homes/lib';
import type { Alert, Home, SeriesPoint } from '../../src/homes/types';

const AT = Date.parse('2026-11-21T12:00:00Z');

function home(change: Partial<Home> = {}): Home {
  return {
    id: 'home-01',
    name: 'Mill Road 1',
    place: { lat: 54, lon: -8 },
    street: null,
    note: null,
    gateway: null,
    devices: 1,
    values: [
      { device: 'a', quantity: 'co2', value: 640, unit: 'ppm', at: new Date(AT).toISOString(), stale: false },
    ],
    worst: 'ok',
    alerts: 0,
    ...change,
  };
}

function alert(change: Partial<Alert> = {}): Alert {
  return {
    id: 'a1',
    rule: 'r1',
    rule_name: 'Radon',
    home: 'home-01',
    home_name: 'Mill Road 1',
    device: 'a',
    quantity: 'radon',
    severity: 'warning',
    state: 'active',
    value: 400,
    peak: 400,
    unit: 'Bq/m³',
    threshold: 300,
    raised_at: '2026-11-21T12:00:00Z',
    cleared_at: null,
    acknowledged_at: null,
    acknowledged_by: null,
    note: null,
    ...change,
  };
}

function points(...values: [number, number | null][]): SeriesPoint[] {
  return values.map(([second, value]) => ({
    at: new Date(AT + second * 1000).toISOString(),
    value,
    min: value,
    max: value,
    count: value === null ? 0 : 1,
  }));
}

describe('curves', () => {
  it('keep gaps between averages, and say how many', () => {
    const steps = points([0, null], [60, 1], [120, 2], [180, null], [240, null], [300, 3], [360, 4]);
    const { values, gaps } = columns(steps, false);
    expect(values).toEqual([null, 1, 2, null, null, 3, 4]);
    expect(gaps).toBe(1);
  });

  it('join what is measured less often than the steps are long', () => {
    const half = points(
      ...Array.from({ length: 24 }, (_, at): [number, number | null] => [at * 900, at % 2 ? null : at]),
    );
    const { values, gaps } = columns(half, false);
    expect(gaps).toBe(0);
    expect(values.slice(0, 3)).toEqual([0, 2, 4]);
    // Then it measures in every step, and once it did not for long.
    const both = points(
      [0, 1],
      [900, null],
      [1800, 2],
      [2700, null],
      [3600, 3],
      [4500, 4],
      [5400, 5],
      [6300, null],
      [7200, null],
      [8100, null],
      [9000, 6],
      [9900, 7],
    );
    expect(columns(both, false)).toMatchObject({ gaps: 1, values: [1, 2, 3, 4, 5, null, null, null, 6, 7] });
  });

  it('do not bridge a gap between single readings', () => {
    const raw = points([0, 1], [10, 2], [20, 3], [120, 4], [130, 5]);
    const { times, values, gaps } = columns(raw, true);
    expect(values).toEqual([1, 2, 3, null, 4, 5]);
    expect(times[3]).toBe(AT / 1000 + 30);
    expect(gaps).toBe(1);
  });
});

describe('live messages', () => {
  it('change a value, and an older one does not', () => {
    const before = home();
    const live = { device: 'a', home: 'home-01', quantity: 'co2', unit: 'ppm' };
    const newer = withValue(before, { ...live, value: 700, at: new Date(AT + 1000).toISOString() });
    expect(newer.values.map((value) => value.value)).toEqual([700]);
    const older = withValue(newer, { ...live, value: 500, at: new Date(AT - 1000).toISOString() });
    expect(older).toBe(newer);
    const other = withValue(newer, { ...live, quantity: 'radon', value: 80, at: new Date(AT).toISOString() });
    expect(other.values.map((value) => value.quantity)).toEqual(['radon', 'co2']);
  });

  it('raise, acknowledge and clear alerts', () => {
    const raised = withAlert([], alert());
    const both = withAlert(raised, alert({ id: 'a2', severity: 'critical' }));
    expect(both.map((one) => one.id)).toEqual(['a2', 'a1']);
    const seen = withAlert(both, alert({ id: 'a2', severity: 'critical', state: 'acknowledged' }));
    expect(seen.map((one) => one.id)).toEqual(['a1', 'a2']);
    expect(withAlert(seen, alert({ state: 'cleared' })).map((one) => one.id)).toEqual(['a2']);
  });
});

describe('homes', () => {
  it('that need somebody come first, then by name and number', () => {
    const all = [
      home({ name: 'Road 10' }),
      home({ name: 'Road 9' }),
      home({ name: 'Z', worst: 'critical' }),
      home({ name: 'A', worst: 'warning' }),
    ];
    expect(all.sort(byNeed).map((one) => one.name)).toEqual(['Z', 'A', 'Road 9', 'Road 10']);
  });

  it('are said in words and points', () => {
    expect(stateWord(home())).toBe('ok');
    expect(stateWord(home({ values: [] }))).toBe('no values');
    const [first] = home().values;
    expect(stateWord(home({ values: first ? [{ ...first, stale: true }] : [] }))).toBe('silent');
    const [point] = pointsOfHomes([home({ worst: 'critical' }), home({ place: null })]);
    expect(point).toMatchObject({ id: 'home-01', kind: 'bad', label: 'Mill Road 1, critical' });
  });

  it('have values with as many digits as they are worth', () => {
    expect(measured(21.456, '°C')).toBe('21.5 °C');
    expect(measured(1234.5, 'ppm')).toBe('1,235 ppm');
    expect(duration(7200)).toBe('2 h');
    expect(duration(90)).toBe('90 s');
  });
});
