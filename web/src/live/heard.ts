// Meters that were heard: from the server's topic or from a receiver on this device. Hundreds come a
// second when a van drives; screens are told twice a second.

import * as state from '../state';
import type { Heard } from '../types';

const SHOW_EVERY_MS = 500;
const MOST = 20_000;

const waiting = new Map<string, Heard & { times: number }>();
let timer: ReturnType<typeof setTimeout> | undefined;

export function hear(heard: Heard): void {
  if (typeof heard.meter !== 'string') return;
  const before = waiting.get(heard.meter) ?? state.heard.value.get(heard.meter);
  waiting.set(heard.meter, { ...heard, times: (before?.times ?? 0) + 1 });
  timer ??= setTimeout(show, SHOW_EVERY_MS);
}

function show(): void {
  timer = undefined;
  const all = new Map(state.heard.value);
  for (const [meter, heard] of waiting) {
    // Last heard, last in the map.
    all.delete(meter);
    all.set(meter, heard);
  }
  waiting.clear();
  for (const meter of all.keys()) {
    if (all.size <= MOST) break;
    all.delete(meter);
  }
  state.heard.value = all;
}

export function forgetHeard(): void {
  waiting.clear();
  state.heard.value = new Map();
}
