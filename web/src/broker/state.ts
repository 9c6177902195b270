// Who operates the broker here, and what the overview says, live. An admin of the platform's server needs no other
// login: the platform's token counts. Everybody else has a session of the broker's own, whose cookie no script sees.

import { computed, signal } from '@preact/signals';
import { ApiError, call, type Request } from '../data/api';
import { whileSeen } from '../lib/seen';
import * as app from '../state';
import { fromHistory, sample, withSample, type Sample } from './lib';
import type { Begun, History, Me, Overview, Role } from './types';

const PREFIX = '/api/admin/v1';
const KEPT = 'fulmar-broker-session';
export const LIVE_MS = 2000;

/** The page's secret of a session; the other one is a cookie. */
const secret = signal<string | null>(readSecret());
/** Null until the broker has said who this is; `undefined` if nobody is logged in. */
export const me = signal<Me | null | undefined>(null);
export const overview = signal<Overview | null>(null);
/** Whether everybody on this machine may see the overview. */
export const isOpen = signal(false);
export const samples = signal<readonly Sample[]>([]);
/** Why what is shown is old. */
export const problem = signal<string | null>(null);

const RANKS: Role[] = ['viewer', 'operator', 'administrator'];
const isAtLeast = (role: Role) => RANKS.indexOf(me.value?.role ?? 'viewer') >= RANKS.indexOf(role);
/** May disconnect, ban, delete and read messages. */
export const mayOperate = computed(() => isAtLeast('operator'));
/** May manage users, roles and rules. */
export const mayAdminister = computed(() => isAtLeast('administrator'));

/** Whether this is the platform's login, which the rest of the app shows. */
export const isPlatforms = computed(() => app.session.value !== null && app.isServerAdmin.value);

function readSecret(): string | null {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

function keepSecret(value: string | null): void {
  secret.value = value;
  try {
    if (value === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, value);
  } catch {
    // Without storage, it lasts as long as the page.
  }
}

function credentials(): Request {
  if (isPlatforms.value) return { token: app.session.value?.token ?? null };
  return { session: secret.value };
}

/** The administration API; a login that has ended leads back to the login. */
export async function ask<T>(path: string, request: Request = {}): Promise<T> {
  try {
    const { data } = await call<T>(path, { prefix: PREFIX, ...credentials(), ...request });
    return data;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) lost();
    throw error;
  }
}

/** A response that is read while it comes. */
export function stream(path: string, signal: AbortSignal): Promise<Response> {
  const { token, session } = credentials();
  const headers = new Headers();
  if (token) headers.set('authorization', `Bearer ${token}`);
  if (session) headers.set('x-fulmar-session', session);
  return fetch(PREFIX + path, { headers, signal, cache: 'no-store', credentials: 'same-origin' });
}

function lost(): void {
  if (isPlatforms.value) app.expired.value = true;
  else keepSecret(null);
  [me.value, isOpen.value] = [undefined, false];
  overview.value = null;
}

/** Asks the broker who this is. */
export async function recognise(): Promise<void> {
  if (!isPlatforms.value && secret.value === null) {
    await lookOpen();
    me.value = undefined;
    return;
  }
  try {
    me.value = await ask<Me>('/me');
    problem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status !== 401) problem.value = error.message;
  }
}

async function lookOpen(): Promise<void> {
  try {
    const { data } = await call<Overview>('/overview', { prefix: PREFIX, session: null });
    [overview.value, isOpen.value] = [data, true];
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    isOpen.value = false;
  }
}

export async function logIn(json: { user: string; password: string } | { token: string }): Promise<void> {
  // The broker's own session even if the platform knows somebody else.
  const { data } = await call<Begun>('/session', { prefix: PREFIX, method: 'POST', json, session: null });
  keepSecret(data.session);
  me.value = { name: data.name, role: data.role };
}

export async function logOut(): Promise<void> {
  try {
    await ask('/session', { method: 'DELETE' });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
  lost();
}

async function load(): Promise<void> {
  try {
    const now = await ask<Overview>('/overview');
    overview.value = now;
    samples.value = withSample(samples.value, sample(now));
    problem.value = null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status !== 401) problem.value = error.message;
  }
}

/** Asks again and again while the page is seen; returns what ends it. */
export function follow(): () => void {
  void ask<History>('/history').then(
    (history) => {
      const known = fromHistory(history);
      const last = known.at(-1)?.atMs ?? 0;
      samples.value = [...known, ...samples.value.filter((one) => one.atMs > last)];
    },
    () => undefined,
  );
  return whileSeen(LIVE_MS, () => (me.value || isOpen.value ? load() : undefined));
}
