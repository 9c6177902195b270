// Readings as the office sees them: fetched once, and kept up to date with those that the server announces, which come
// whole. What was missed without a connection is fetched.

import { useEffect, useMemo } from 'preact/hooks';
import { Gather } from '../lib/gather';
import { isHalfConflict, withAnnounced, type ReadingFilter } from '../lib/readings';
import * as state from '../state';
import type { Reading } from '../types';
import { useAgainAfterRefresh, usePages, type Loaded } from './office';

/** With more, everything is fetched again. */
const MOST_ANNOUNCED = 2000;

const waiting = new Gather<Reading>((came) => {
  const all = new Map([...state.announced.value, ...came]);
  const isFull = all.size > MOST_ANNOUNCED;
  state.announced.value = isFull ? new Map() : all;
  if (isFull) state.refreshes.value += 1;
});

/** A live message: a reading that is new or has changed. */
export function announced(reading: Partial<Reading>): void {
  const { id, meter, at, value } = reading;
  const isWhole = [id, meter, at].every((one) => typeof one === 'string') && typeof value === 'number';
  if (isWhole) waiting.add(id ?? '', reading as Reading);
}

export function forgetAnnounced(): void {
  waiting.clear();
  state.announced.value = new Map();
}

/** At most `most` readings, the newest first. */
export function useReadings(filter: ReadingFilter, most: number): Loaded<Reading[]> {
  const query = new URLSearchParams({ order: 'desc', ...filter }).toString();
  const { data: fetched, problem, again } = usePages<Reading>(`/reading?${query}`, most);
  useAgainAfterRefresh(again);
  const news = state.announced.value;
  const data = useMemo(
    () => fetched && withAnnounced(fetched, [...news.values()], filter, most),
    [fetched, news],
  );
  // A conflict is announced with one of its readings only.
  useEffect(() => {
    if (data && isHalfConflict(data, filter)) again();
  }, [news]);
  return { data, problem, again };
}
