// What the screens of homes share, fetched and live. Live values come over MQTT; without it everything is asked
// for again every few seconds.

import { batch, computed, signal } from '@preact/signals';
import { ApiError, pages } from '../data/api';
import * as app from '../state';
import { Gather } from '../lib/gather';
import { whileSeen } from '../lib/seen';
import { sortAlerts, withAlert, withStates, withValue } from './lib';
import type { Alert, Home, LiveValue, Sensor } from './types';

const SOON_MS = 1500;
/** How often everything is asked for: without live messages, with them, and while none come. */
export const POLL_MS = { alone: 10_000, live: 60_000, quiet: 20_000 };
/** Silence may be a gateway's that is cut off: only asking tells which values are stale. */
const QUIET_AFTER_MS = 10_000;

const places = signal<ReadonlyMap<string, Home>>(new Map());
export const alerts = signal<readonly Alert[]>([]);
export const sensors = signal<readonly Sensor[]>([]);
export const loadedAt = signal<number | null>(null);
export const problem = signal<string | null>(null);
/** When the newest value of a device came, for charts that are to follow; keys are `device/quantity`. */
export const newest = signal<ReadonlyMap<string, string>>(new Map());

/** What is wrong with each follows from the alerts, which the server announces whole. */
export const homes = computed(() => withStates(places.value, alerts.value));
export const raised = computed(() => alerts.value.filter((alert) => alert.state === 'active'));

let loading: Promise<void> | null = null;
let soon: ReturnType<typeof setTimeout> | undefined;
let loadedTwin: string | null = null;
const waiting = new Gather<LiveValue>(show);
let heardMs = 0;
/** Announced while all is fetched, whose answer may be from before. */
let meanwhile: Alert[] = [];

/** Fetches homes, alerts and sensors; failing leaves what was there. */
export function load(): Promise<void> {
  loading ??= fetchAll().finally(() => (loading = null));
  return loading;
}

/** Fetches what is there after a change: what is being fetched may be from before it. */
export async function reload(): Promise<void> {
  await loading;
  await load();
}

async function fetchAll(): Promise<void> {
  const [session, twin] = [app.session.value, app.twin.value];
  if (!session || !twin || app.expired.value) return;
  meanwhile = [];
  const all = <T>(path: string) => pages<T>(`/${encodeURIComponent(twin.id)}${path}`, session.token, 1000);
  try {
    const [found, active, acknowledged, units] = await Promise.all([
      all<Home>('/home'),
      all<Alert>('/alert?state=active'),
      all<Alert>('/alert?state=acknowledged'),
      all<Sensor>('/sensor'),
    ]);
    if (app.twin.value?.id !== twin.id) return;
    batch(() => {
      places.value = new Map(found.map((home) => [home.id, home]));
      alerts.value = meanwhile.reduce(withAlert, sortAlerts([...active, ...acknowledged]));
      sensors.value = units;
      loadedAt.value = Date.now();
      problem.value = null;
      app.online.value = true;
    });
    loadedTwin = twin.id;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) app.expired.value = true;
    if (loadedTwin !== twin.id) places.value = new Map();
    problem.value = error.message;
  }
}

/** Many changes, one fetch. */
function loadSoon(): void {
  soon ??= setTimeout(() => {
    soon = undefined;
    void load();
  }, SOON_MS);
}

/** A live message below the twin's topic: `value/…` or `alert/…`. */
export function receive(kind: string, message: object | null): void {
  heardMs = Date.now();
  if (kind === 'value' && isValue(message)) {
    waiting.add(`${message.device}/${message.quantity}`, message);
  } else if (kind === 'value' && message === null) {
    // Its sensor has been removed.
    loadSoon();
  } else if (kind === 'alert' && isAlert(message)) {
    // That an alert is over is said before its retained message is taken away.
    alerts.value = withAlert(alerts.value, message);
    if (loading) meanwhile.push(message);
  }
}

function isValue(message: object | null): message is LiveValue {
  const { device, quantity, value, at } = (message ?? {}) as Partial<LiveValue>;
  const isNamed = typeof device === 'string' && typeof quantity === 'string';
  return isNamed && typeof value === 'number' && typeof at === 'string';
}

function isAlert(message: object | null): message is Alert {
  const { id, severity, state, raised_at } = (message ?? {}) as Partial<Alert>;
  return typeof id === 'string' && Boolean(severity) && Boolean(state) && typeof raised_at === 'string';
}

function show(came: ReadonlyMap<string, LiveValue>): void {
  const next = new Map(places.value);
  const times = new Map(newest.value);
  const known = new Set(sensors.value.map(({ device }) => device));
  let isUnknown = false;
  for (const [key, live] of came) {
    times.set(key, live.at);
    const home = live.home === null ? undefined : next.get(live.home);
    if (home) next.set(home.id, withValue(home, live));
    if (!known.has(live.device)) isUnknown = true;
  }
  batch(() => {
    places.value = next;
    newest.value = times;
  });
  if (isUnknown) loadSoon();
}

/** Asks again and again while the page is seen; returns what ends it. */
export function follow(): () => void {
  let lastMs = 0;
  return whileSeen(1000, () => {
    const now = Date.now();
    if (now - lastMs < pause(now)) return undefined;
    lastMs = now;
    return load();
  });
}

function pause(now: number): number {
  if (!app.isLive.value) return POLL_MS.alone;
  return now - heardMs < QUIET_AFTER_MS ? POLL_MS.live : POLL_MS.quiet;
}

/** Another installation, or nobody: nothing of the last one is shown. */
export function forget(): void {
  waiting.clear();
  loadedTwin = null;
  batch(() => {
    places.value = new Map();
    alerts.value = [];
    sensors.value = [];
    newest.value = new Map();
    loadedAt.value = null;
  });
}
