// What all screens share: who is logged in, what was fetched, what waits. Signals, so that a screen
// draws again only when what it reads has changed.

import { computed, signal } from '@preact/signals';
import type { Conflict, Item } from './data/outbox';
import { count } from './data/outbox';
import type { Config, Heard, Meter, Place, Reading, Session, TwinRole, WorkList } from './types';

export type Theme = 'system' | 'light' | 'dark';

export const session = signal<Session | null>(null);
/** The token ran out or was taken back; work goes on, sending waits for a login. */
export const expired = signal(false);
export const twinId = signal<string | null>(null);
export const config = signal<Config | null>(null);
/** The server has been asked for it, or cannot be. */
export const configTried = signal(false);
export const device = signal('');
export const deviceName = signal('');
export const theme = signal<Theme>('system');
/** Whether the office sees where the reader is: nobody is followed who did not switch it on. */
export const keepRoute = signal(false);
export const photoPixels = signal(1280);

export const meters = signal<ReadonlyMap<string, Meter>>(new Map());
export const lists = signal<readonly WorkList[]>([]);
export const outbox = signal<readonly Item[]>([]);
export const conflicts = signal<readonly Conflict[]>([]);
export const loadedAt = signal<number | null>(null);
/** Counts how often all was fetched anew, but for news whose content came with them. */
export const refreshes = signal(0);
/** Readings that the server announced, as they are now, by id. */
export const announced = signal<ReadonlyMap<string, Reading>>(new Map());

export const online = signal(true);
export const sending = signal(false);
export const refreshing = signal(false);
export const sendProblem = signal<string | null>(null);
/** How live messages come: `webtransport`, `websocket`, or not at all. */
export const live = signal<'off' | 'connecting' | 'webtransport' | 'websocket'>('off');
/** Said in a corner, and by a screen reader; goes by itself. */
export const notice = signal<{ text: string; kind: 'info' | 'good' | 'bad' } | null>(null);
export const updateReady = signal<(() => void) | null>(null);

export const position = signal<{
  place: Place;
  accuracyM: number;
  speedMps: number | null;
  at: number;
} | null>(null);
export const heard = signal<ReadonlyMap<string, Heard & { times: number }>>(new Map());
export const vans = signal<ReadonlyMap<string, { place: Place; at: string }>>(new Map());

/** Moves on every few seconds, for "12 s ago". */
export const clock = signal(Date.now());

export const user = computed(() => session.value?.user ?? null);
export const twin = computed<TwinRole | null>(
  () => user.value?.twins.find((one) => one.id === twinId.value) ?? user.value?.twins[0] ?? null,
);
export const isOffice = computed(() => ['office', 'admin', 'viewer'].includes(twin.value?.role ?? ''));
export const isHomes = computed(() => twin.value?.kind === 'homes');
export const isLive = computed(() => live.value === 'webtransport' || live.value === 'websocket');
export const isServerAdmin = computed(() => user.value?.server_admin === true);
export const mayWrite = computed(() => twin.value !== null && twin.value.role !== 'viewer');
export const mayManage = computed(() => ['office', 'admin'].includes(twin.value?.role ?? ''));

export const mine = computed(() => outbox.value.filter((one) => one.user === user.value?.name));
export const counts = computed(() => count([...mine.value]));

/** Readings of this device that the server has not confirmed, by meter; the newest counts. */
export const pendingReadings = computed(() => {
  const byMeter = new Map<string, Reading>();
  for (const one of mine.value) if (one.kind === 'reading') byMeter.set(one.reading.meter, one.reading);
  return byMeter;
});

let noticeTimer: ReturnType<typeof setTimeout> | undefined;

export function say(text: string, kind: 'info' | 'good' | 'bad' = 'info'): void {
  notice.value = { text, kind };
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => (notice.value = null), 6000);
}
