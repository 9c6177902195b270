// Commands from the office to this device: fetch again, send now, show a message. Unknown ones are refused. They are
// announced whole; those that were given while the device was away are fetched.

import { ApiError, call } from '../data/api';
import { flush, refresh } from '../data/sync';
import * as state from '../state';
import type { Command, Page } from '../types';

/** Carried out or under way: an announced one may also be fetched. */
const begun = new Set<string>();

function request() {
  const [token, twin] = [state.session.value?.token ?? null, state.twin.value?.id ?? ''];
  const path = `/${encodeURIComponent(twin)}/instance/${encodeURIComponent(state.device.value)}/command`;
  return { token, path };
}

export async function runWaiting(): Promise<void> {
  const { token, path } = request();
  // Whoever only looks has no device.
  if (!token || !state.mayWrite.value) return;
  try {
    const { data } = await call<Page<Command>>(path, { token });
    for (const command of data.items.filter((one) => one.state === 'pending')) await runCommand(command);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
}

export async function runCommand(command: Command): Promise<void> {
  const { token, path } = request();
  if (!token || typeof command.id !== 'string' || begun.has(command.id)) return;
  begun.add(command.id);
  const isKnown = await run(command);
  const json = isKnown
    ? { state: 'done' }
    : { state: 'failed', detail: 'This app does not know the command.' };
  try {
    await call(`${path}/${encodeURIComponent(command.id)}`, { method: 'PATCH', token, json });
  } catch (error) {
    // What the office was not told is told when it comes again.
    begun.delete(command.id);
    if (!(error instanceof ApiError)) throw error;
  }
}

async function run({ command, args }: Command): Promise<boolean> {
  switch (command) {
    case 'refresh':
      await refresh(true);
      return true;
    case 'send':
      await flush();
      return true;
    case 'message': {
      const text = (args as { text?: unknown } | null)?.text;
      if (typeof text !== 'string') return false;
      state.say(`Office: ${text.slice(0, 300)}`, 'info');
      return true;
    }
    default:
      return false;
  }
}
