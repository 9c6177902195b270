// Which positions of the reader are worth keeping: enough for a route on a map, few enough for days
// offline and for the battery. Pure.

import type { Place } from '../types';
import { metresBetween } from './geo';

export interface Fix {
  place: Place;
  accuracyM: number;
  speedMps: number | null;
  at: number;
}

const MOVING = { everyMs: 15_000, metres: 15 };
const RESTING_EVERY_MS = 300_000;
/** Worse than that is a guess from a radio mast. */
const MOST_ACCURACY_M = 200;

export function isWorthKeeping(before: Fix | null, fix: Fix): boolean {
  if (fix.accuracyM > MOST_ACCURACY_M) return false;
  if (!before) return true;
  const passed = fix.at - before.at;
  const hasMoved = metresBetween(before.place, fix.place) >= Math.max(MOVING.metres, fix.accuracyM / 2);
  return passed >= (hasMoved ? MOVING.everyMs : RESTING_EVERY_MS);
}
