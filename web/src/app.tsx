// Which screen belongs to which path, and who may see it.

import type { ComponentType } from 'preact';
import { List, Lists } from './pages/lists';
import { Login } from './pages/login';
import { MapPage } from './pages/map';
import { MeterPage } from './pages/meter';
import { Pending } from './pages/pending';
import { Drive, Walk } from './pages/radio';
import { More, Settings } from './pages/settings';
import * as state from './state';
import { Empty, Page } from './ui/parts';
import { match, path } from './ui/router';
import { Shell } from './ui/shell';

type Screen = ComponentType<{ id: string }>;

const SCREENS: readonly (readonly [string, Screen])[] = [
  ['/map', MapPage],
  ['/drive', Drive],
  ['/walk', Walk],
  ['/lists', Lists],
  ['/lists/:id', List],
  ['/meters/:id', MeterPage],
  ['/pending', Pending],
  ['/settings', Settings],
  ['/more', More],
];

export function App() {
  if (!state.session.value || path.value === '/login') return <Login />;
  return (
    <Shell>
      <Current />
    </Shell>
  );
}

function Current() {
  const now = path.value === '/' ? '/map' : path.value;
  for (const [pattern, Screen] of SCREENS) {
    const named = match(pattern, now);
    if (named) return <Screen key={now} id={named['id'] ?? ''} />;
  }
  return (
    <Page title="Not found" back="/">
      <Empty icon="search" title="There is nothing at this address" />
    </Page>
  );
}
