// What the server announces is used as it is.

import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { withStates } from '../../src/homes/lib';
import { alerts, receive } from '../../src/homes/state';
import type { Alert, Home } from '../../src/homes/types';
import { isHalfConflict, withAnnounced } from '../../src/lib/readings';
import * as state from '../../src/state';
import type { Reading, TwinRole } from '../../src/types';

const reading = (id: string, more: Partial<Reading> = {}): Reading => ({
  id,
  meter: 'm1',
  at: `2026-11-0${id}T00:00:00.000Z`,
  value: Number(id),
  unit: 'm3',
  method: 'manual',
  photo: null,
  place: null,
  note: null,
  implausible_confirmed: false,
  work_list: null,
  conflict_with: [],
  etag: '"1"',
  ...more,
});
const ids = (readings: Reading[]) => readings.map(({ id }) => id).join('');

describe('an announced reading', () => {
  const fetched = [reading('3'), reading('1')];

  test('is in the list at its time, if it is what the list is of', () => {
    const news = [reading('2'), reading('4', { method: 'radio' })];
    expect(ids(withAnnounced(fetched, news, {}, 9))).toBe('4321');
    expect(ids(withAnnounced(fetched, news, { method: 'manual' }, 9))).toBe('321');
    expect(ids(withAnnounced(fetched, news, { meter: 'm2' }, 9))).toBe('');
    expect(ids(withAnnounced(fetched, news, {}, 2))).toBe('43');
  });

  test('replaces what is known of it, unless that is newer', () => {
    const changed = reading('3', { value: 33, etag: '"2"' });
    expect(withAnnounced(fetched, [changed], {}, 9)[0]?.value).toBe(33);
    const later = [reading('3', { value: 34, etag: '"10"' })];
    expect(withAnnounced(later, [changed], {}, 9)[0]?.value).toBe(34);
  });

  test('leaves a list that it no longer belongs to', () => {
    const contested = [reading('3', { conflict_with: ['1'] }), reading('1', { conflict_with: ['3'] })];
    const settled = [reading('3', { etag: '"2"' }), reading('1', { etag: '"2"' })];
    expect(ids(withAnnounced(contested, settled, { conflict: 'true' }, 9))).toBe('');
  });

  test('in conflict with one that does not know of it is not enough', () => {
    expect(isHalfConflict([reading('3', { conflict_with: ['1'] }), reading('1')], {})).toBe(true);
    const both = [reading('3', { conflict_with: ['1'] }), reading('1', { conflict_with: ['3'] })];
    expect(isHalfConflict(both, {})).toBe(false);
    expect(isHalfConflict([reading('3', { conflict_with: ['1'] })], { conflict: 'true' })).toBe(true);
    expect(isHalfConflict([reading('3', { conflict_with: ['1'] })], {})).toBe(false);
  });
});

describe('an announced alert', () => {
  const alert = (state: Alert['state']) =>
    ({ id: 'a', home: 'h', severity: 'critical', state, raised_at: '2026-11-01T00:00:00.000Z' }) as Alert;

  beforeEach(() => {
    vi.useFakeTimers();
    vi.stubGlobal('fetch', vi.fn().mockRejectedValue(new Error('no network')));
    const twins: TwinRole[] = [{ id: 't', name: 't', role: 'office', kind: 'homes' }];
    state.session.value = { token: 't', expires_at: '', user: { name: 'u', display_name: null, twins } };
    alerts.value = [];
  });
  afterEach(() => {
    vi.useRealTimers();
    vi.unstubAllGlobals();
    state.session.value = null;
  });

  test('is there and goes without anything being fetched', () => {
    receive('alert', alert('active'));
    expect(alerts.value.map(({ id }) => id)).toEqual(['a']);
    receive('alert', alert('cleared'));
    receive('alert', null);
    expect(alerts.value).toEqual([]);
    vi.runAllTimers();
    expect(fetch).not.toHaveBeenCalled();
  });

  test('makes its home what it is', () => {
    const home = { id: 'h', worst: 'ok', alerts: 0 } as Home;
    const well = { id: 'w', worst: 'ok', alerts: 0 } as Home;
    const homes = new Map([
      ['h', home],
      ['w', well],
    ]);
    const alarmed = withStates(homes, [alert('acknowledged')]);
    expect(alarmed.get('h')).toMatchObject({ worst: 'critical', alerts: 1 });
    expect(alarmed.get('w')).toBe(well);
    expect(withStates(alarmed, []).get('h')).toMatchObject({ worst: 'ok', alerts: 0 });
  });
});
