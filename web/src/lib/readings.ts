// Lists of readings and what is announced of them. Pure.

import type { Reading } from '../types';

/** As the API has it. */
export type ReadingFilter = Partial<Record<'meter' | 'method' | 'work_list' | 'conflict', string>>;

function fits(reading: Reading, { meter, method, work_list, conflict }: ReadingFilter): boolean {
  const isOf = (wanted: string | undefined, has: string | null) => wanted === undefined || wanted === has;
  const isContested = (reading.conflict_with ?? []).length > 0;
  return (
    isOf(meter, reading.meter) &&
    isOf(method, reading.method) &&
    isOf(work_list, reading.work_list) &&
    isOf(conflict, String(isContested))
  );
}

function revision({ etag }: Reading): number {
  return Number((etag ?? '').replace(/\D/g, ''));
}

/** The newest first, at most `most`: each as it was changed last, and only what still fits. */
export function withAnnounced(
  fetched: Reading[],
  announced: readonly Reading[],
  filter: ReadingFilter,
  most: number,
): Reading[] {
  if (announced.length === 0) return fetched;
  const all = new Map(fetched.map((one) => [one.id, one]));
  for (const one of announced) {
    const known = all.get(one.id);
    if (!known || revision(one) > revision(known)) all.set(one.id, one);
  }
  return [...all.values()]
    .filter((one) => fits(one, filter))
    .sort((a, b) => b.at.localeCompare(a.at))
    .slice(0, most);
}

/** Whether a reading is in conflict with one that is here and does not say so, or would be here. */
export function isHalfConflict(readings: readonly Reading[], filter: ReadingFilter): boolean {
  const known = new Map(readings.map((one) => [one.id, one]));
  return readings.some(({ id, conflict_with: others = [] }) =>
    others.some((other) => {
      const its = known.get(other);
      return its ? !its.conflict_with?.includes(id) : filter.conflict === 'true';
    }),
  );
}
