// The outbox: what this device made and the server has not confirmed. An item leaves it only when the
// server has answered for it, so nothing is lost; its id is made here, so sending twice stores once.
//
// No network here: `upload.ts` sends.

import type { Frame, Reading, ResultStatus, Task, TaskState, Telemetry, WorkList } from '../types';
import type { Database } from './db';

export type Payload =
  | { kind: 'reading'; reading: Reading }
  | { kind: 'photo'; type: string; bytes: number }
  | { kind: 'frame'; frame: Frame; meter: string | null }
  | { kind: 'telemetry'; telemetry: Telemetry }
  | { kind: 'task'; work_list: string; meter: string; outcome: TaskState; note: string | null };

export type Item = Payload & {
  id: string;
  /** Whose work it is: another user of the same device does not send it as theirs. */
  user: string;
  twin: string;
  /** Milliseconds since 1970. */
  created: number;
  /** `refused`: the server said no; it waits for a person. */
  state: 'waiting' | 'refused';
  attempts: number;
  problem: string | null;
};

/** Two readings of one meter that the server keeps both until somebody decides. */
export interface Conflict {
  id: string;
  twin: string;
  user: string;
  reading: Reading;
  detail: string | null;
  found: number;
}

/** At most so many frames and positions wait; above it the oldest positions, then frames, give way. */
export const MOST_FRAMES = 50_000;
export const MOST_TELEMETRY = 20_000;

export interface Owner {
  user: string;
  twin: string;
}

export function item<P extends Payload>(id: string, owner: Owner, payload: P, now: number): P & Item {
  return { ...payload, ...owner, id, created: now, state: 'waiting', attempts: 0, problem: null } as P & Item;
}

/** Photo first: a reading names it, and one transaction keeps them together. */
export async function put(db: Database, items: Item[], photo?: { id: string; blob: Blob }): Promise<void> {
  const transaction = db.transaction(['outbox', 'photos'], 'readwrite');
  const writes: Promise<unknown>[] = items.map((one) => transaction.objectStore('outbox').put(one));
  if (photo) writes.push(transaction.objectStore('photos').put(photo.blob, photo.id));
  await Promise.all([...writes, transaction.done]);
}

export function all(db: Database): Promise<Item[]> {
  return db.getAllFromIndex('outbox', 'created');
}

export async function remove(db: Database, ids: string[]): Promise<void> {
  const transaction = db.transaction(['outbox', 'photos'], 'readwrite');
  const deletes: Promise<unknown>[] = [];
  for (const id of ids) {
    deletes.push(transaction.objectStore('outbox').delete(id), transaction.objectStore('photos').delete(id));
  }
  await Promise.all([...deletes, transaction.done]);
}

/** Throws a refused reading away, and its photo with it unless another reading has the same. */
export async function discard(db: Database, items: Item[], id: string): Promise<void> {
  const gone = items.find((one) => one.id === id);
  const photo = gone?.kind === 'reading' ? gone.reading.photo : null;
  const shared = items.some((one) => one.id !== id && one.kind === 'reading' && one.reading.photo === photo);
  await remove(db, photo && !shared ? [id, photo] : [id]);
}

/** Lets refused items be tried again. */
export async function retry(db: Database, ids: string[]): Promise<void> {
  const transaction = db.transaction('outbox', 'readwrite');
  for (const id of ids) {
    const one = await transaction.store.get(id);
    if (one) await transaction.store.put({ ...one, state: 'waiting', problem: null });
  }
  await transaction.done;
}

/**
 * What the server said of each: confirmed ones leave, refused ones stay with the reason. In the same
 * transaction the stored work list learns what was confirmed: a phone that goes offline before it
 * has fetched the list again must not send its reader to the same meter twice.
 */
export async function settle(
  db: Database,
  outcomes: { item: Item; status: ResultStatus; detail: string | null }[],
  now: number,
): Promise<void> {
  const transaction = db.transaction(['outbox', 'photos', 'conflicts', 'lists'], 'readwrite');
  const [outbox, photos, conflicts, lists] = [
    transaction.objectStore('outbox'),
    transaction.objectStore('photos'),
    transaction.objectStore('conflicts'),
    transaction.objectStore('lists'),
  ];
  for (const { item: one, status, detail } of outcomes) {
    if (status === 'rejected') {
      await outbox.put({
        ...one,
        state: 'refused',
        attempts: one.attempts + 1,
        problem: detail ?? 'refused',
      });
      continue;
    }
    await outbox.delete(one.id);
    await photos.delete(one.id);
    if (status === 'conflict' && one.kind === 'reading') {
      const { id, twin, user, reading } = one;
      await conflicts.put({ id, twin, user, reading, detail, found: now });
    }
    const key = listKey(one);
    const list = key && (await lists.get(key));
    if (list) await lists.put({ ...list, ...confirmed(list, one) });
  }
  await transaction.done;
}

function listKey(one: Item): [string, string] | null {
  if (one.kind === 'task') return [one.twin, one.work_list];
  return one.kind === 'reading' && one.reading.work_list ? [one.twin, one.reading.work_list] : null;
}

function confirmed(list: WorkList, one: Item): Pick<WorkList, 'tasks' | 'done'> {
  const tasks = (list.tasks ?? []).map((task): Task => {
    if (one.kind === 'reading' && one.reading.meter === task.meter.id)
      return { ...task, state: 'read', reading: one.reading };
    if (one.kind === 'task' && one.meter === task.meter.id)
      return { ...task, state: one.outcome, note: one.note };
    return task;
  });
  return { tasks, done: Math.max(list.done, tasks.filter((task) => task.state === 'read').length) };
}

/** Keeps days of driving from filling the phone. Readings, photos and tasks are never dropped. */
export async function thin(db: Database): Promise<number> {
  const items = await all(db);
  const over = (kind: Item['kind'], most: number) => {
    const of = items.filter((one) => one.kind === kind);
    return of.slice(0, Math.max(0, of.length - most)).map((one) => one.id);
  };
  const ids = [...over('telemetry', MOST_TELEMETRY), ...over('frame', MOST_FRAMES)];
  if (ids.length > 0) await remove(db, ids);
  return ids.length;
}

export interface Counts {
  readings: number;
  photos: number;
  frames: number;
  telemetry: number;
  tasks: number;
  refused: number;
  total: number;
}

export function count(items: Item[]): Counts {
  const of = (kind: Item['kind']) => items.filter((one) => one.kind === kind).length;
  return {
    readings: of('reading'),
    photos: of('photo'),
    frames: of('frame'),
    telemetry: of('telemetry'),
    tasks: of('task'),
    refused: items.filter((one) => one.state === 'refused').length,
    total: items.length,
  };
}
