// Keeps device and server together: opens the store, fetches meters and work lists, sends the outbox when
// there is a chance of success, and tells the screens through `state`.

import { batch } from '@preact/signals';
import { load as loadHomes } from '../homes/state';
import * as state from '../state';
import type { Config, Meter, Session, WorkList } from '../types';
import { ApiError, call, pages } from './api';
import { openDatabase, type Database } from './db';
import * as outbox from './outbox';
import { uploadAlone, type Report } from './upload';

const SYNC_TAG = 'fulmar-outbox';
const RETRY_MS = { first: 5_000, most: 300_000 };
/** Whole lists are fetched again after so long, so that meters taken away go. */
const FULL_AFTER_MS = 24 * 3_600_000;

let opened: Promise<Database> | null = null;
let retryTimer: ReturnType<typeof setTimeout> | undefined;
let retryMs = RETRY_MS.first;
let refreshAgain: 'asked' | 'announced' | null = null;

export function database(): Promise<Database> {
  opened ??= openDatabase();
  return opened;
}

async function kept<T>(key: string): Promise<T | undefined> {
  return (await (await database()).get('kv', key)) as T | undefined;
}

export async function keep(key: string, value: unknown): Promise<void> {
  await (await database()).put('kv', value, key);
}

/** What was there when the app was last open; works without any network. */
export async function start(): Promise<void> {
  const stored = await kept<string>('device');
  const device = stored ?? `phone-${crypto.randomUUID().slice(0, 8)}`;
  if (!stored) await keep('device', device);
  const session = (await kept<Session>('session')) ?? null;
  const settings = (await kept<Partial<Settings>>('settings')) ?? {};
  batch(() => {
    state.device.value = device;
    state.deviceName.value = settings.deviceName ?? '';
    state.theme.value = settings.theme ?? 'system';
    state.keepRoute.value = settings.recordRoute ?? false;
    state.photoPixels.value = settings.photoPixels ?? 1280;
    state.twinId.value = settings.twin ?? null;
    state.session.value = session;
  });
  const config = await kept<Config>('config');
  if (config) state.config.value = config;
  await showStored();
  await showOutbox();
}

interface Settings {
  deviceName: string;
  theme: state.Theme;
  /** Not `keepRoute`, which earlier versions stored as true without being asked. */
  recordRoute: boolean;
  photoPixels: number;
  twin: string | null;
}

export async function saveSettings(): Promise<void> {
  const settings: Settings = {
    deviceName: state.deviceName.value,
    theme: state.theme.value,
    recordRoute: state.keepRoute.value,
    photoPixels: state.photoPixels.value,
    twin: state.twinId.value,
  };
  await keep('settings', settings);
}

export async function loadConfig(): Promise<void> {
  try {
    const { data } = await call<Config>('/config');
    state.config.value = data;
    await keep('config', data);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

export async function showStored(): Promise<void> {
  const twin = state.twin.value?.id;
  if (!twin) {
    state.meters.value = new Map();
    state.lists.value = [];
    return;
  }
  const db = await database();
  const meters = await db.getAllFromIndex('meters', 'twin', twin);
  const lists = await db.getAllFromIndex('lists', 'twin', twin);
  batch(() => {
    state.meters.value = new Map(meters.map((meter) => [meter.id, meter]));
    state.lists.value = lists.sort(byDue);
    state.loadedAt.value = null;
  });
  state.loadedAt.value = (await kept<number>(`loaded:${twin}`)) ?? null;
}

function byDue(a: WorkList, b: WorkList): number {
  if (a.state !== b.state) return a.state === 'open' ? -1 : 1;
  return (a.due ?? '9999').localeCompare(b.due ?? '9999') || a.name.localeCompare(b.name);
}

export async function showOutbox(): Promise<void> {
  const db = await database();
  const [items, conflicts] = await Promise.all([outbox.all(db), db.getAll('conflicts')]);
  batch(() => {
    state.outbox.value = items;
    state.conflicts.value = conflicts.filter((one) => one.user === state.user.value?.name);
  });
}

/**
 * Fetches what has changed; full lists once a day. Failing is normal: what is stored stays shown. After an announcement,
 * which has its content with it, screens do not ask again for lists of their own.
 */
export async function refresh(everything = false, isAnnounced = false): Promise<void> {
  const [session, twin] = [state.session.value, state.twin.value];
  if (!session || !twin) return;
  if (state.refreshing.value) {
    // What changed since that one asked would be missed.
    if (refreshAgain !== 'asked') refreshAgain = isAnnounced ? 'announced' : 'asked';
    return;
  }
  // Of homes nothing is stored on the device.
  if (state.isHomes.value) return loadHomes();
  state.refreshing.value = true;
  try {
    await fetchTwin(session.token, twin.id, everything);
    await showStored();
    if (!isAnnounced) state.refreshes.value += 1;
  } catch (error) {
    failed(error);
  } finally {
    state.refreshing.value = false;
  }
  if (!refreshAgain) return;
  const isOnlyAnnounced = refreshAgain === 'announced';
  refreshAgain = null;
  await refresh(false, isOnlyAnnounced);
}

async function fetchTwin(token: string, twin: string, everything: boolean): Promise<void> {
  const db = await database();
  const path = `/${encodeURIComponent(twin)}`;
  const [full, since] = [await kept<number>(`full:${twin}`), await kept<string>(`since:${twin}`)];
  const begun = new Date();
  const isFull = everything || !since || begun.getTime() - (full ?? 0) > FULL_AFTER_MS;
  const query = isFull ? '' : `?changed_since=${encodeURIComponent(since)}`;
  const meters = await pages<Meter>(`${path}/meter${query}`, token, 5000);
  const heads = await pages<WorkList>(`${path}/work_list`, token, 1000);
  const before = new Map((await db.getAllFromIndex('lists', 'twin', twin)).map((list) => [list.id, list]));
  const known = new Map((await db.getAllFromIndex('meters', 'twin', twin)).map((meter) => [meter.id, meter]));
  for (const meter of meters) known.set(meter.id, { ...meter, twin });
  const lists = [];
  for (const head of heads) lists.push(await fetchList(path, token, head, before.get(head.id), known));

  const transaction = db.transaction(['meters', 'lists', 'kv'], 'readwrite');
  const [meterStore, listStore] = [transaction.objectStore('meters'), transaction.objectStore('lists')];
  if (isFull) await deleteTwin(meterStore, twin);
  await deleteTwin(listStore, twin);
  for (const meter of meters) void meterStore.put({ ...meter, twin });
  for (const list of lists) void listStore.put({ ...list, twin });
  const kv = transaction.objectStore('kv');
  // A minute back: clocks and transactions under way must not hide a change.
  void kv.put(new Date(begun.getTime() - 60_000).toISOString(), `since:${twin}`);
  void kv.put(begun.getTime(), `loaded:${twin}`);
  if (isFull) void kv.put(begun.getTime(), `full:${twin}`);
  await transaction.done;
}

interface TwinStore {
  index(name: 'twin'): { getAllKeys(twin: string): Promise<[string, string][]> };
  delete?(key: [string, string]): Promise<void>;
}

async function deleteTwin(store: TwinStore, twin: string): Promise<void> {
  for (const key of await store.index('twin').getAllKeys(twin)) await store.delete?.(key);
}

/** Tasks are fetched again only when the list's ETag says that something changed. */
async function fetchList(
  path: string,
  token: string,
  head: WorkList,
  before: WorkList | undefined,
  known: Map<string, Meter>,
): Promise<WorkList> {
  if (before?.tasks && head.etag && before.etag === head.etag) return before;
  const url = `${path}/work_list/${encodeURIComponent(head.id)}`;
  // The meters have just been loaded, all but those that are new since.
  let { data } = await call<WorkList>(`${url}?meters=false`, { token });
  const tasks = (data.tasks ?? []).flatMap((task) => {
    const meter = known.get(task.meter.id);
    return meter ? [{ ...task, meter }] : [];
  });
  if (tasks.length === data.tasks?.length) data = { ...data, tasks };
  else data = (await call<WorkList>(url, { token })).data;
  const etag = head.etag ?? data.etag;
  return etag ? { ...data, etag } : data;
}

function failed(error: unknown): void {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) state.expired.value = true;
  else if (error.status === 0) state.online.value = navigator.onLine && state.live.value !== 'off';
}

/** Puts items into the outbox, shows them and tries to send. They are safe once this resolves. */
export async function submit(items: outbox.Item[], photo?: { id: string; blob: Blob }): Promise<void> {
  await outbox.put(await database(), items, photo);
  await showOutbox();
  void flush();
  void askForBackgroundSync();
}

/** Sends what waits, if somebody is logged in. Never throws for want of a network. */
export async function flush(): Promise<Report | null> {
  const session = state.session.value;
  if (!session || state.expired.value || state.sending.value) return null;
  if (!state.mine.value.some((one) => one.state === 'waiting')) return null;
  clearTimeout(retryTimer);
  state.sending.value = true;
  try {
    const { user, token } = session;
    const report = await uploadAlone(await database(), {
      user: user.name,
      token,
      device: state.device.value,
    });
    // The lists first: what leaves the outbox is on them already.
    await showStored();
    await showOutbox();
    if (report) finished(report);
    return report;
  } finally {
    state.sending.value = false;
    // What came in while sending.
    if (state.sendProblem.value === null && state.mine.value.some((one) => one.state === 'waiting'))
      scheduleRetry(1000);
  }
}

function finished(report: Report): void {
  const { stopped } = report;
  state.sendProblem.value = stopped?.message ?? null;
  if (stopped?.status === 401) state.expired.value = true;
  if (stopped) {
    scheduleRetry(stopped.retryAfterS ? stopped.retryAfterS * 1000 : retryMs);
    retryMs = Math.min(retryMs * 2, RETRY_MS.most);
  } else {
    retryMs = RETRY_MS.first;
    state.online.value = true;
  }
  if (report.conflicts > 0) state.say('Another reading exists for a meter: see Pending.', 'bad');
  else if (report.refused > 0) state.say('The server refused an item: see Pending.', 'bad');
  if (report.sent > 0 && !state.expired.value) void refresh();
}

function scheduleRetry(ms: number): void {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(() => void flush(), ms);
}

/** Where the browser has it (Chromium), sending goes on after the app is closed. */
async function askForBackgroundSync(): Promise<void> {
  const registration = await navigator.serviceWorker?.getRegistration();
  const sync = (registration as { sync?: { register(tag: string): Promise<void> } } | undefined)?.sync;
  await sync?.register(SYNC_TAG).catch(() => undefined);
}

/** Begins sending and fetching at the moments when it may work. */
export function watchNetwork(): void {
  const retryNow = () => {
    state.online.value = true;
    retryMs = RETRY_MS.first;
    void flush().then(() => refresh());
  };
  state.online.value = navigator.onLine;
  addEventListener('online', retryNow);
  addEventListener('offline', () => (state.online.value = false));
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible' && navigator.onLine) retryNow();
  });
  navigator.serviceWorker?.addEventListener('message', (event: MessageEvent<unknown>) => {
    if (event.data === 'outbox-sent') void showOutbox();
  });
}
