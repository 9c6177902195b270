import { beforeEach, describe, expect, it } from 'vitest';
import { frame, list, meter, newId, OWNER, reading, telemetry } from './helpers';
import { ApiError } from '../../src/data/api';
import { openDatabase, type Database } from '../../src/data/db';
import { all, count, discard, item, put, retry, settle, thin, type Item } from '../../src/data/outbox';
import { batches, upload, BATCH } from '../../src/data/upload';
import { doneOf, inOrder, listFor, nextOpen, seenTasks } from '../../src/lib/work';
import type { Reading, Result } from '../../src/types';

const SENDER = { user: OWNER.user, token: 't', device: 'd' };

let db: Database;
beforeEach(async () => {
  db = await openDatabase(`test-${newId()}`);
});

interface Asked {
  path: string;
  method: string | undefined;
  json: unknown;
}

/** A server that answers readings as `judge` says, and remembers what it was asked. */
function server(judge: (one: Reading) => Partial<Result> = () => ({ status: 'stored' })) {
  const asked: Asked[] = [];
  const stored = new Map<string, Reading>();
  const send = (path: string, { method, json, body }: { method?: string; json?: unknown; body?: Blob }) => {
    asked.push({ path, method, json: json ?? body });
    const { readings, items } = (json ?? {}) as { readings?: Reading[]; items?: Reading[] };
    const results = (readings ?? items ?? []).map((one) => {
      const again = stored.has(one.id);
      const result = { id: one.id, status: 'stored', ...judge(one) };
      if (result.status !== 'rejected') stored.set(one.id, one);
      return again ? { id: one.id, status: 'duplicate' } : result;
    });
    return Promise.resolve({ data: { results } });
  };
  return { asked, stored, send };
}

async function fill(...all: { items: Item[]; photo?: { id: string; blob: Blob } }[]): Promise<void> {
  for (const one of all) await put(db, one.items, one.photo);
}

describe('sending', () => {
  it('sends readings by work list and empties the outbox', async () => {
    const { asked, stored, send } = server();
    await fill(reading('a', 1, 'L1'), reading('b', 2, 'L1'), reading('c', 3));
    const report = await upload(db, SENDER, send);
    expect(report).toEqual({ sent: 3, refused: 0, conflicts: 0, stopped: null });
    expect(asked.map(({ method, path }) => `${method} ${path}`)).toEqual([
      'PATCH /hill/work_list/L1',
      'POST /hill/reading',
    ]);
    expect([...stored.values()].map((one) => one.meter)).toEqual(['a', 'b', 'c']);
    expect(await all(db)).toEqual([]);
  });

  it('sends a photo before the reading that names it', async () => {
    const { asked, send } = server();
    const taken = reading('a', 1, null, new Blob(['jpeg'], { type: 'image/jpeg' }));
    await fill(taken);
    await upload(db, SENDER, send);
    expect(asked.map(({ path }) => path)).toEqual([`/hill/photo/${taken.photo?.id}`, '/hill/reading']);
    expect(await db.count('photos')).toBe(0);
  });

  it('keeps a reading back while its photo cannot be sent', async () => {
    const { send } = server();
    await fill(reading('a', 1, null, new Blob(['jpeg'], { type: 'image/jpeg' })), reading('b'));
    const refusing: typeof send = (path, request) =>
      path.includes('/photo/') ? Promise.reject(new ApiError(409, 'other bytes')) : send(path, request);
    const report = await upload(db, SENDER, refusing);
    expect(report).toMatchObject({ sent: 1, refused: 1 });
    expect((await all(db)).map((one) => [one.kind, one.state])).toEqual([
      ['photo', 'refused'],
      ['reading', 'waiting'],
    ]);
  });

  it.each([507, 429])('sends readings after an answer of %i to a photo', async (status) => {
    const { asked, stored, send } = server();
    const jpeg = () => new Blob(['jpeg'], { type: 'image/jpeg' });
    await fill(reading('a', 1, null, jpeg()), reading('b', 2), reading('c', 3, null, jpeg()));
    let photos = 0;
    const full: typeof send = (path, request) => {
      if (!path.includes('/photo/')) return send(path, request);
      photos += 1;
      return Promise.reject(new ApiError(status, 'The server has no room for photos.', 60));
    };
    const report = await upload(db, SENDER, full);
    expect(report).toMatchObject({ sent: 1, refused: 0, stopped: { status, retryAfterS: 60 } });
    expect([...stored.values()].map((one) => one.meter)).toEqual(['b']);
    expect(photos).toBe(1);
    expect((await all(db)).map((one) => [one.kind, one.state])).toEqual([
      ['photo', 'waiting'],
      ['reading', 'waiting'],
      ['photo', 'waiting'],
      ['reading', 'waiting'],
    ]);
    // There is room again.
    expect(await upload(db, SENDER, send)).toMatchObject({ sent: 4, stopped: null });
    expect(asked.map(({ method }) => method)).toEqual(['POST', 'PUT', 'PUT', 'POST']);
    expect(await all(db)).toEqual([]);
  });

  it('sends nothing more when the server is away while a photo is sent', async () => {
    await fill(reading('a', 1, null, new Blob(['jpeg'], { type: 'image/jpeg' })), reading('b'));
    const paths: string[] = [];
    const report = await upload(db, SENDER, (path) => {
      paths.push(path);
      return Promise.reject(new ApiError(503, 'later'));
    });
    expect(report).toMatchObject({ sent: 0, stopped: { status: 503 } });
    expect(paths).toHaveLength(1);
  });

  it('loses nothing when the network goes, and doubles nothing when the answer is lost', async () => {
    const { stored, send } = server();
    await fill(reading('a'), reading('b'));
    const lostAnswer: typeof send = async (path, request) => {
      await send(path, request);
      throw new ApiError(0, 'gone');
    };
    const report = await upload(db, SENDER, lostAnswer);
    expect(report.stopped?.status).toBe(0);
    expect(await all(db)).toHaveLength(2);
    expect(await upload(db, SENDER, send)).toMatchObject({ sent: 2, stopped: null });
    expect(stored.size).toBe(2);
    expect(await all(db)).toEqual([]);
  });

  it.each([401, 425, 429, 500, 503])('waits after an answer of %i', async (status) => {
    await fill(reading('a'));
    const report = await upload(db, SENDER, () => Promise.reject(new ApiError(status, 'no', 7)));
    expect(report.stopped).toMatchObject({ status, retryAfterS: 7 });
    expect((await all(db))[0]).toMatchObject({ state: 'waiting' });
  });

  it('marks on the stored list what is confirmed, so that nobody is sent there twice', async () => {
    const { send } = server();
    await db.put('lists', { ...list('L1', [meter('a'), meter('b')]), twin: OWNER.twin });
    await fill(reading('a', 5, 'L1'));
    await upload(db, SENDER, send);
    const stored = await db.get('lists', [OWNER.twin, 'L1']);
    expect(stored?.tasks?.map((task) => [task.meter.id, task.state, task.reading?.value])).toEqual([
      ['a', 'read', 5],
      ['b', 'open', undefined],
    ]);
    expect(stored?.done).toBe(1);
  });

  it('keeps what an answer does not name', async () => {
    await fill(reading('a'));
    await upload(db, SENDER, () => Promise.resolve({ data: { results: [] } }));
    expect(await all(db)).toHaveLength(1);
  });

  it('finds the one bad item of a batch that is refused as a whole', async () => {
    const { stored, send } = server();
    await fill(reading('a'), reading('bad'), reading('c'), reading('d'));
    const strict: typeof send = (path, request) =>
      JSON.stringify(request.json).includes('"bad"')
        ? Promise.reject(new ApiError(422, 'bad meter'))
        : send(path, request);
    expect(await upload(db, SENDER, strict)).toMatchObject({ sent: 3, refused: 1, stopped: null });
    expect([...stored.values()].map((one) => one.meter)).toEqual(['a', 'c', 'd']);
    const [left] = await all(db);
    expect(left).toMatchObject({ state: 'refused', problem: 'bad meter' });
    await retry(db, [left?.id ?? '']);
    expect((await all(db))[0]).toMatchObject({ state: 'waiting', problem: null });
  });

  it("does not send another user's work", async () => {
    const { asked, send } = server();
    await fill(reading('a'));
    await upload(db, { ...SENDER, user: 'otto' }, send);
    expect(asked).toEqual([]);
    expect(await all(db)).toHaveLength(1);
  });

  it('sends in batches of bounded size, readings before frames before positions', () => {
    const items = [
      telemetry(),
      frame(),
      ...Array.from({ length: BATCH.reading + 1 }, () => reading('a').items).flat(),
    ];
    expect(batches(items).map(([{ kind }, part]) => [kind, part.length])).toEqual([
      ['reading', BATCH.reading],
      ['reading', 1],
      ['frame', 1],
      ['telemetry', 1],
    ]);
  });

  it('sends what happened to tasks, frames and positions', async () => {
    const { asked, send } = server();
    const payload = {
      kind: 'task',
      work_list: 'L1',
      meter: 'a',
      outcome: 'unreachable',
      note: 'dog',
    } as const;
    await put(db, [item(newId(), OWNER, payload, 1), frame(), telemetry()]);
    expect(await upload(db, SENDER, send)).toMatchObject({ sent: 3, stopped: null });
    expect(asked.map(({ path }) => path)).toEqual([
      '/hill/work_list/L1',
      '/hill/frame',
      '/hill/instance/d/telemetry',
    ]);
    expect(asked[0]?.json).toEqual({ tasks: [{ meter: 'a', state: 'unreachable', note: 'dog' }] });
    expect(await all(db)).toEqual([]);
  });
});

describe('what the server says', () => {
  it('keeps a conflict to be shown, and takes it out of the outbox', async () => {
    const { send } = server(() => ({ status: 'conflict', detail: 'read by otto' }));
    await fill(reading('a', 17));
    expect(await upload(db, SENDER, send)).toMatchObject({ sent: 1, conflicts: 1 });
    expect(await all(db)).toEqual([]);
    const [conflict] = await db.getAll('conflicts');
    expect(conflict).toMatchObject({
      user: 'rita',
      detail: 'read by otto',
      reading: { meter: 'a', value: 17 },
    });
  });

  it('throws a refused reading away with its photo, but not one that another has', async () => {
    const one = reading('a', 1, null, new Blob(['x'], { type: 'image/jpeg' }));
    await fill(one);
    const [photo, refused] = (await all(db)) as [Item, Item];
    await settle(db, [{ item: refused, status: 'rejected', detail: 'no' }], 1);
    await discard(db, await all(db), refused.id);
    expect(await all(db)).toEqual([]);
    expect(await db.get('photos', photo.id)).toBeUndefined();
  });

  it('counts what waits', async () => {
    await fill(reading('a', 1, null, new Blob(['x'])), { items: [frame(), telemetry()] });
    expect(count(await all(db))).toEqual({
      readings: 1,
      photos: 1,
      frames: 1,
      telemetry: 1,
      tasks: 0,
      refused: 0,
      total: 4,
    });
    expect(await thin(db)).toBe(0);
  });
});

describe('work lists', () => {
  const [near, far] = [
    meter('near', { place: { lat: 50, lon: 8 } }),
    meter('far', { place: { lat: 50.1, lon: 8 } }),
  ];
  const work = list('L1', [far, near]);

  it('lays what waits over what the server knows', () => {
    const items = reading('near', 5, 'L1').items;
    expect(seenTasks(work, items).map((task) => [task.meter.id, task.state, task.pending])).toEqual([
      ['far', 'open', false],
      ['near', 'read', true],
    ]);
    expect(doneOf(work, items)).toEqual({ done: 1, total: 2 });
    // A reading for another list does not count here.
    expect(doneOf(work, reading('near', 5, 'L2').items).done).toBe(0);
  });

  it('goes to the nearest open meter', () => {
    const here = { lat: 50, lon: 8 };
    expect(inOrder(seenTasks(work, []), here).map((task) => task.meter.id)).toEqual(['near', 'far']);
    expect(nextOpen(seenTasks(work, []), 'near', here)?.meter.id).toBe('far');
    expect(nextOpen(seenTasks(work, reading('far', 1, 'L1').items), 'near', here)).toBeNull();
  });

  it('finds the list a reading belongs to', () => {
    expect(listFor('near', [work], null)).toBe('L1');
    expect(listFor('near', [{ ...work, state: 'done' }], 'L1')).toBeNull();
    expect(listFor('other', [work], 'L1')).toBeNull();
  });
});
