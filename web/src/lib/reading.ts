// Making a reading, with its photo, into outbox items. Pure but for the ids.

import { item, type Item, type Owner } from '../data/outbox';
import type { Meter, Place, Reading } from '../types';

export interface Taken {
  meter: Meter;
  value: number;
  confirmed: boolean;
  note: string;
  place: Place | null;
  workList: string | null;
  photo: Blob | null;
  device: string;
}

/** The items to store, and the photo's bytes under its id. */
export function takeReading(
  taken: Taken,
  owner: Owner,
  now: number,
  newId: () => string = () => crypto.randomUUID(),
): { items: Item[]; photo?: { id: string; blob: Blob } } {
  const photoId = taken.photo ? newId() : null;
  const reading: Reading = {
    id: newId(),
    meter: taken.meter.id,
    at: new Date(now).toISOString(),
    value: taken.value,
    unit: taken.meter.unit,
    method: taken.photo ? 'photo' : 'manual',
    photo: photoId,
    place: taken.place,
    note: taken.note.trim() || null,
    implausible_confirmed: taken.confirmed,
    work_list: taken.workList,
    device: taken.device,
  };
  const items: Item[] = [item(reading.id, owner, { kind: 'reading', reading }, now)];
  if (!taken.photo || !photoId) return { items };
  const { type, size } = taken.photo;
  items.unshift(item(photoId, owner, { kind: 'photo', type, bytes: size }, now));
  return { items, photo: { id: photoId, blob: taken.photo } };
}
