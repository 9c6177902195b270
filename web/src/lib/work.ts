// Work lists as the reader sees them: what the server knows, and on top of it what waits on this device.
// Pure.

import type { Item } from '../data/outbox';
import type { Meter, Place, Reading, Task, TaskState, WorkList } from '../types';
import { metresBetween } from './geo';

export interface SeenTask extends Task {
  /** From this device, not yet confirmed. */
  pending: boolean;
}

/** Tasks with this device's unsent readings and remarks laid over them. */
export function seenTasks(list: WorkList, outbox: readonly Item[]): SeenTask[] {
  const readings = new Map<string, Reading>();
  const outcomes = new Map<string, { state: TaskState; note: string | null }>();
  for (const one of outbox) {
    if (one.kind === 'reading' && one.reading.work_list === list.id)
      readings.set(one.reading.meter, one.reading);
    if (one.kind === 'task' && one.work_list === list.id) {
      outcomes.set(one.meter, { state: one.outcome, note: one.note });
    }
  }
  return (list.tasks ?? []).map((task) => {
    const reading = readings.get(task.meter.id);
    if (reading) return { ...task, state: 'read', reading, pending: true };
    const outcome = outcomes.get(task.meter.id);
    if (outcome) return { ...task, ...outcome, pending: true };
    return { ...task, pending: false };
  });
}

export function doneOf(list: WorkList, outbox: readonly Item[]): { done: number; total: number } {
  if (!list.tasks) return { done: list.done, total: list.total };
  const done = seenTasks(list, outbox).filter((task) => task.state !== 'open').length;
  return { done, total: list.tasks.length };
}

/** The open list that has this meter as an open task; the one that is due first. */
export function listFor(meter: string, lists: readonly WorkList[], preferred: string | null): string | null {
  const has = (list: WorkList) =>
    list.state === 'open' && list.tasks?.some((task) => task.meter.id === meter);
  const chosen = lists.find((list) => list.id === preferred && has(list));
  return (chosen ?? lists.find(has))?.id ?? null;
}

/** Open ones first, the nearest of them first when it is known where the reader is. */
export function inOrder(tasks: SeenTask[], from: Place | null): SeenTask[] {
  const rank = (task: SeenTask) => (task.state === 'open' ? 0 : 1);
  const far = (meter: Meter) => (from && meter.place ? metresBetween(from, meter.place) : Infinity);
  return [...tasks].sort((a, b) => {
    const byState = rank(a) - rank(b);
    if (byState !== 0) return byState;
    const [toA, toB] = [far(a.meter), far(b.meter)];
    if (from && toA !== toB) return toA - toB;
    return (a.meter.street ?? '').localeCompare(b.meter.street ?? '', 'en', { numeric: true });
  });
}

/** The open task after this one, so that a reader goes from meter to meter without the list. */
export function nextOpen(tasks: SeenTask[], after: string, from: Place | null): SeenTask | null {
  return inOrder(tasks, from).find((task) => task.state === 'open' && task.meter.id !== after) ?? null;
}
