// Commands from the office to this device: fetch again, send now, show a message. Unknown ones are refused.

import { ApiError, call } from '../data/api';
import { flush, refresh } from '../data/sync';
import * as state from '../state';
import type { Command, Page } from '../types';

export async function runCommands(): Promise<void> {
  const [token, twin] = [state.session.value?.token, state.twin.value?.id];
  if (!token || !twin) return;
  const path = `/${encodeURIComponent(twin)}/instance/${encodeURIComponent(state.device.value)}/command`;
  try {
    const { data } = await call<Page<Command>>(path, { token });
    for (const command of data.items.filter((one) => one.state === 'pending')) {
      const isKnown = await run(command);
      const json = isKnown
        ? { state: 'done' }
        : { state: 'failed', detail: 'This app does not know the command.' };
      await call(`${path}/${encodeURIComponent(command.id)}`, { method: 'PATCH', token, json });
    }
  } catch (error) {
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
