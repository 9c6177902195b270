// Logging in and out. The token is kept on the device, because a reader must be able to open the app in
// a cellar; logging out makes it worthless at the server and wipes what was fetched.

import { batch } from '@preact/signals';
import * as state from '../state';
import type { Session } from '../types';
import { ApiError, call } from './api';
import * as sync from './sync';

export const APP_VERSION = __APP_VERSION__;

/** `onward` is called when the app is shown, not when all is stored: by then one may be elsewhere. */
export async function login(user: string, password: string, onward: () => void): Promise<void> {
  const { data } = await call<Session>('/session', { method: 'POST', json: { user, password } });
  const before = state.session.value?.user.name;
  await sync.keep('session', data);
  batch(() => {
    state.session.value = data;
    state.expired.value = false;
    if (!data.user.twins.some((one) => one.id === state.twinId.value)) {
      state.twinId.value = data.user.twins[0]?.id ?? null;
    }
    onward();
  });
  if (before && before !== data.user.name) await wipe();
  await sync.saveSettings();
  await sync.showStored();
  await sync.showOutbox();
  // Days of readings must not fall to the browser's tidying up.
  void navigator.storage?.persist?.().catch(() => undefined);
  void registerDevice();
  void sync.flush().then(() => sync.refresh());
}

export async function logout(): Promise<void> {
  const token = state.session.value?.token;
  if (token) {
    try {
      await call('/session', { method: 'DELETE', token });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
    }
  }
  await wipe();
  await (await sync.database()).delete('kv', 'session');
  batch(() => {
    state.session.value = null;
    state.expired.value = false;
    state.live.value = 'off';
    state.heard.value = new Map();
  });
  await sync.showStored();
}

export async function chooseTwin(id: string): Promise<void> {
  state.twinId.value = id;
  state.heard.value = new Map();
  await sync.saveSettings();
  await sync.showStored();
  await sync.refresh();
}

/** What was fetched goes; what waits to be sent stays with its owner's name. */
async function wipe(): Promise<void> {
  const db = await sync.database();
  const transaction = db.transaction(['meters', 'lists', 'kv'], 'readwrite');
  const kv = transaction.objectStore('kv');
  const keys = (await kv.getAllKeys()).filter((key) => /^(full|since|loaded):/.test(key));
  await Promise.all([
    transaction.objectStore('meters').clear(),
    transaction.objectStore('lists').clear(),
    ...keys.map((key) => kv.delete(key)),
    transaction.done,
  ]);
}

/** Tells the office which device this is; also after the name was changed. */
export async function registerDevice(): Promise<void> {
  const [session, twin] = [state.session.value, state.twin.value];
  if (!session || !twin || !state.mayWrite.value || state.isHomes.value) return;
  const name = state.deviceName.value || `${session.user.display_name || session.user.name}'s device`;
  const json = { kind: 'phone', name, app_version: APP_VERSION };
  const path = `/${encodeURIComponent(twin.id)}/instance/${encodeURIComponent(state.device.value)}`;
  try {
    await call(path, { method: 'PUT', token: session.token, json });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}
