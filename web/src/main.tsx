// The app's beginning: what is stored is shown at once, then the network is asked.

import { effect } from '@preact/signals';
import { render } from 'preact';
import { App } from './app';
import { loadConfig, flush, refresh, start, watchNetwork } from './data/sync';
import { installServiceWorker } from './install';
import * as state from './state';
import './styles/base.css';
import './styles/parts.css';
import './styles/shell.css';

const CLOCK_MS = 5000;

effect(() => {
  const root = document.documentElement;
  if (state.theme.value === 'system') delete root.dataset['theme'];
  else root.dataset['theme'] = state.theme.value;
});

async function main(): Promise<void> {
  await start();
  const root = document.getElementById('app');
  if (root) render(<App />, root);
  watchNetwork();
  setInterval(() => (state.clock.value = Date.now()), CLOCK_MS);
  void installServiceWorker();
  await loadConfig();
  await flush();
  await refresh();
}

void main();
