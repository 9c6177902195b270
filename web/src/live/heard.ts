// Meters that were heard: from the server's topic or from a receiver on this device.

import { Gather } from '../lib/gather';
import * as state from '../state';
import type { Heard } from '../types';

const MOST = 20_000;

const waiting = new Gather<Heard & { times: number }>((came) => {
  const all = new Map(state.heard.value);
  for (const [meter, heard] of came) {
    // Last heard, last in the map.
    all.delete(meter);
    all.set(meter, heard);
  }
  for (const meter of all.keys()) {
    if (all.size <= MOST) break;
    all.delete(meter);
  }
  state.heard.value = all;
});

export function hear(heard: Heard): void {
  if (typeof heard.meter !== 'string') return;
  const before = waiting.get(heard.meter) ?? state.heard.value.get(heard.meter);
  waiting.add(heard.meter, { ...heard, times: (before?.times ?? 0) + 1 });
}

const SINCE = 'fulmar-drive-since';
/** A tour is over after this time. */
const TOUR_MS = 12 * 3_600_000;

/** When what is counted began: at the last reset, or when the first page of this tour was opened. */
export function countedSince(nowMs: number): number {
  try {
    const kept = Number(localStorage.getItem(SINCE));
    if (kept > nowMs - TOUR_MS && kept <= nowMs) return kept;
    localStorage.setItem(SINCE, String(nowMs));
  } catch {
    // Without storage, it lasts as long as the page.
  }
  return nowMs;
}

export function forgetHeard(): void {
  try {
    localStorage.removeItem(SINCE);
  } catch {
    // As above.
  }
  waiting.clear();
  state.heard.value = new Map();
}
