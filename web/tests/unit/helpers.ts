// What the tests make their meters and readings of.

import 'fake-indexeddb/auto';
import { item, type Item, type Owner } from '../../src/data/outbox';
import { takeReading } from '../../src/lib/reading';
import type { Meter, WorkList } from '../../src/types';

export const OWNER: Owner = { user: 'rita', twin: 'hill' };

export function meter(id: string, more: Partial<Meter> = {}): Meter {
  return {
    id,
    address: null,
    serial: id,
    manufacturer: null,
    medium: 'water',
    place: null,
    street: null,
    unit: 'm3',
    register_digits: 5,
    radio: false,
    has_key: false,
    note: null,
    expected: null,
    last: null,
    state: 'ok',
    ...more,
  };
}

let ids = 0;
export const newId = () => `id-${(ids += 1)}`;

export function reading(
  meterId: string,
  value = 1,
  workList: string | null = null,
  photo: Blob | null = null,
) {
  const taken = {
    meter: meter(meterId),
    value,
    confirmed: false,
    note: '',
    place: null,
    workList,
    photo,
    device: 'd',
  };
  return takeReading(taken, OWNER, (ids += 1), newId);
}

export function frame(): Item {
  const id = newId();
  const one = { id, hex: '00', at: '2026-01-01T00:00:00.000Z', rssi_dbm: null, place: null };
  return item(id, OWNER, { kind: 'frame', frame: one, meter: null }, ids);
}

export function telemetry(): Item {
  const id = newId();
  const at = '2026-01-01T00:00:00.000Z';
  const nothing = {
    place: null,
    accuracy_m: null,
    speed_mps: null,
    battery_percent: null,
    charging: null,
    network: null,
  };
  return item(id, OWNER, { kind: 'telemetry', telemetry: { id, at, ...nothing } }, ids);
}

export function list(id: string, meters: Meter[]): WorkList {
  const tasks = meters.map((one) => ({ meter: one, state: 'open' as const, reading: null, note: null }));
  return { id, name: id, assignee: null, state: 'open', due: null, total: meters.length, done: 0, tasks };
}
