// The app's beginning: what is stored is shown at once, then the network is asked.

import { computed, effect, untracked } from '@preact/signals';
import { render } from 'preact';
import { App } from './app';
import { registerDevice } from './data/account';
import { loadConfig, flush, refresh, start, watchNetwork } from './data/sync';
import { follow, forget } from './homes/state';
import { installServiceWorker } from './install';
import { connect, disconnect } from './live/mqtt';
import * as state from './state';
import './styles/base.css';
import './styles/parts.css';
import './styles/shell.css';
import './styles/map.css';
import './styles/office.css';
import './styles/print.css';

const CLOCK_MS = 5000;

effect(() => {
  const root = document.documentElement;
  if (state.theme.value === 'system') delete root.dataset['theme'];
  else root.dataset['theme'] = state.theme.value;
});

/** Live messages follow login, installation and configuration. */
function stayLive(): void {
  let before = '';
  effect(() => {
    const [session, twin, config] = [state.session.value, state.twin.value, state.config.value];
    const device = state.device.value;
    const [isOffice, isHomes] = [state.isOffice.value, state.isHomes.value];
    const wanted =
      session && twin && config?.mqtt && !state.expired.value ? `${session.token} ${twin.id}` : '';
    if (wanted === before) return;
    before = wanted;
    if (!session || !twin || wanted === '') {
      void disconnect();
      return;
    }
    const target = {
      user: session.user.name,
      token: session.token,
      twin: twin.id,
      isOffice,
      isHomes,
      device,
    };
    // Commands to a device are for the user who told of it.
    void registerDevice().then(() => {
      if (wanted === before) void connect(target);
    });
  });
}

/** Homes are not stored on the device: they are asked for again and again while an installation of homes is chosen. */
function followHomes(): void {
  const twin = computed(() => (state.isHomes.value ? state.twin.value?.id : undefined));
  effect(() => {
    if (twin.value === undefined) return undefined;
    return untracked(() => {
      forget();
      return follow();
    });
  });
}

async function main(): Promise<void> {
  await start();
  const root = document.getElementById('app');
  if (root) render(<App />, root);
  watchNetwork();
  followHomes();
  setInterval(() => (state.clock.value = Date.now()), CLOCK_MS);
  void installServiceWorker();
  await loadConfig();
  state.configTried.value = true;
  stayLive();
  await flush();
  await refresh();
}

void main();
