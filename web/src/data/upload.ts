// Sends the outbox: photos, then readings, tasks, frames and positions, in batches. Runs in the page and,
// for Background Sync, in the service worker; a lock keeps the two from sending at once.
//
// An item is removed only by an answer that names it. Anything else leaves it where it was.

import type { Result } from '../types';
import { ApiError, call, type Request } from './api';
import type { Database } from './db';
import { all, settle, type Item } from './outbox';

export const BATCH = { reading: 100, task: 200, frame: 500, telemetry: 500 } as const;

export interface Sender {
  user: string;
  token: string;
  device: string;
}

export interface Report {
  sent: number;
  refused: number;
  conflicts: number;
  /** Why something still waits: the photos alone, or everything after an error; null when all was answered. */
  stopped: ApiError | null;
}

type Send = (path: string, request: Request) => Promise<{ data: unknown }>;

/** One pass over everything that waits. `send` is the network, replaced in tests. */
export async function upload(db: Database, sender: Sender, send: Send = call): Promise<Report> {
  const report: Report = { sent: 0, refused: 0, conflicts: 0, stopped: null };
  const waiting = (await all(db)).filter((one) => one.state === 'waiting' && one.user === sender.user);
  const pass = new Pass(db, sender, send, report);
  try {
    report.stopped = await pass.photos(waiting);
    const unsent = new Set((await all(db)).filter((one) => one.kind === 'photo').map((one) => one.id));
    for (const [key, items] of batches(waiting)) {
      const ready = items.filter(
        (one) => one.kind !== 'reading' || !one.reading.photo || !unsent.has(one.reading.photo),
      );
      if (ready.length > 0) await pass.batch(key, ready);
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    report.stopped = error;
  }
  return report;
}

/** Under a lock shared by all pages and the service worker; null if somebody else is sending. */
export async function uploadAlone(db: Database, sender: Sender): Promise<Report | null> {
  if (!('locks' in navigator)) return upload(db, sender);
  return navigator.locks.request('fulmar-upload', { ifAvailable: true }, async (lock) =>
    lock ? upload(db, sender) : null,
  );
}

interface Key {
  kind: 'reading' | 'task' | 'frame' | 'telemetry';
  twin: string;
  workList: string | null;
}

/** What goes into one request: the same kind, twin and work list; the most valuable kinds first. */
export function batches(items: Item[]): [Key, Item[]][] {
  const groups = new Map<string, [Key, Item[]]>();
  for (const one of items) {
    if (one.kind === 'photo') continue;
    const workList =
      one.kind === 'reading' ? one.reading.work_list : one.kind === 'task' ? one.work_list : null;
    const key: Key = { kind: one.kind, twin: one.twin, workList };
    const name = JSON.stringify([key.kind, key.twin, key.workList]);
    const group = groups.get(name);
    if (group) group[1].push(one);
    else groups.set(name, [key, [one]]);
  }
  const order = ['reading', 'task', 'frame', 'telemetry'];
  const sorted = [...groups.values()].sort(([a], [b]) => order.indexOf(a.kind) - order.indexOf(b.kind));
  return sorted.flatMap(([key, all]) => {
    const size = BATCH[key.kind];
    const parts: [Key, Item[]][] = [];
    for (let at = 0; at < all.length; at += size) parts.push([key, all.slice(at, at + size)]);
    return parts;
  });
}

class Pass {
  constructor(
    private readonly db: Database,
    private readonly sender: Sender,
    private readonly send: Send,
    private readonly report: Report,
  ) {}

  /** The error if the server has no room for photos now: readings are worth more and need less. */
  async photos(waiting: Item[]): Promise<ApiError | null> {
    try {
      for (const one of waiting) if (one.kind === 'photo') await this.photo(one);
    } catch (error) {
      if (error instanceof ApiError && (error.status === 429 || error.status === 507)) return error;
      throw error;
    }
    return null;
  }

  private async photo(photo: Item): Promise<void> {
    const blob = await this.db.get('photos', photo.id);
    if (!blob) {
      await this.refuse([photo], 'The photo is no longer on this device.');
      return;
    }
    const request = { method: 'PUT', token: this.sender.token, body: blob };
    await this.judged([photo], async () => {
      await this.send(`/${encodeURIComponent(photo.twin)}/photo/${photo.id}`, request);
      return [{ id: photo.id, status: 'stored' }];
    });
  }

  async batch(key: Key, items: Item[]): Promise<void> {
    await this.judged(items, async () => {
      const { path, method, json } = this.request(key, items);
      const { data } = await this.send(path, {
        method,
        token: this.sender.token,
        json,
      });
      const results = (data as { results?: Result[] } | null)?.results;
      // Frames are answered in order, tasks and positions as a whole.
      if (key.kind === 'reading') return results ?? [];
      return items.map((one, at) => ({
        id: one.id,
        status: 'stored',
        detail: results?.[at]?.detail ?? null,
      }));
    });
  }

  private request(key: Key, items: Item[]): { path: string; method: string; json: unknown } {
    const twin = `/${encodeURIComponent(key.twin)}`;
    const list = `${twin}/work_list/${encodeURIComponent(key.workList ?? '')}`;
    switch (key.kind) {
      case 'reading': {
        const readings = items.flatMap((one) => (one.kind === 'reading' ? [one.reading] : []));
        if (key.workList) return { path: list, method: 'PATCH', json: { readings } };
        return { path: `${twin}/reading`, method: 'POST', json: { items: readings } };
      }
      case 'task': {
        const tasks = items.flatMap((one) =>
          one.kind === 'task' ? [{ meter: one.meter, state: one.outcome, note: one.note }] : [],
        );
        return { path: list, method: 'PATCH', json: { tasks } };
      }
      case 'frame': {
        const frames = items.flatMap((one) => (one.kind === 'frame' ? [one.frame] : []));
        return { path: `${twin}/frame`, method: 'POST', json: { receiver: this.sender.device, frames } };
      }
      case 'telemetry': {
        const telemetry = items.flatMap((one) => (one.kind === 'telemetry' ? [one.telemetry] : []));
        const path = `${twin}/instance/${encodeURIComponent(this.sender.device)}/telemetry`;
        return { path, method: 'POST', json: { items: telemetry } };
      }
    }
  }

  /** Sends and settles; a batch that is refused as a whole is halved until the bad item is alone. */
  private async judged(items: Item[], send: () => Promise<Result[]>): Promise<void> {
    let results: Result[];
    try {
      results = await send();
    } catch (error) {
      if (!(error instanceof ApiError) || error.isTemporary || error.status === 401) throw error;
      if (items.length === 1) return this.refuse(items, error.message);
      const middle = Math.ceil(items.length / 2);
      for (const half of [items.slice(0, middle), items.slice(middle)]) {
        for (const [key, part] of batches(half)) await this.batch(key, part);
      }
      return;
    }
    const byId = new Map(items.map((one) => [one.id, one]));
    const outcomes = results.flatMap(({ id, status, detail }) => {
      const one = byId.get(id);
      return one ? [{ item: one, status, detail: detail ?? null }] : [];
    });
    await settle(this.db, outcomes, Date.now());
    this.report.refused += outcomes.filter(({ status }) => status === 'rejected').length;
    this.report.conflicts += outcomes.filter(({ status }) => status === 'conflict').length;
    this.report.sent += outcomes.filter(({ status }) => status !== 'rejected').length;
  }

  private async refuse(items: Item[], detail: string): Promise<void> {
    const outcomes = items.map((one) => ({ item: one, status: 'rejected' as const, detail }));
    await settle(this.db, outcomes, Date.now());
    this.report.refused += items.length;
  }
}
