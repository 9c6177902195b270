// Which screen belongs to which path, and who may see it.

import type { ComponentType } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { List, Lists } from './pages/lists';
import { Login } from './pages/login';
import { Devices } from './pages/office-devices';
import { OfficeLists } from './pages/office-lists';
import { Leaks, Missed } from './pages/office-meters';
import { Overview } from './pages/office-overview';
import { Readings } from './pages/office-readings';
import { MapPage } from './pages/map';
import { MeterPage } from './pages/meter';
import { Pending } from './pages/pending';
import { Drive, Walk } from './pages/radio';
import { More, Settings } from './pages/settings';
import * as state from './state';
import { Empty, Note, Page } from './ui/parts';
import { match, path } from './ui/router';
import { Shell } from './ui/shell';

type Screen = ComponentType<{ id: string }>;

/** Not for readers; the server would refuse what they ask for. */
const OFFICE: readonly (readonly [string, Screen])[] = [
  ['/office', Overview],
  ['/office/lists', OfficeLists],
  ['/office/readings', Readings],
  ['/office/missed', Missed],
  ['/office/leaks', Leaks],
  ['/office/devices', Devices],
];

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
  const isBroker = path.value === '/broker' || path.value.startsWith('/broker/');
  if (isBroker || state.config.value?.platform === false) return <BrokerPage />;
  // Which of the two it is, is not known yet.
  if (!state.session.value && !state.config.value && !state.configTried.value) return null;
  if (!state.session.value || path.value === '/login') return <Login />;
  return <Shell>{state.isHomes.value ? <Homes /> : <Current />}</Shell>;
}

const importHomes = () => import('./homes/section').then((module) => module.Section);
const importBroker = () => import('./broker/broker').then((module) => module.Section);

/** The screens of homes, which are fetched when they are first needed. */
const Homes = () => <Fetched fetch={importHomes} />;

/** Those of the broker, for operators. */
const BrokerPage = () => <Fetched fetch={importBroker} />;

function Fetched({ fetch }: { fetch: () => Promise<ComponentType> }) {
  const [Section, setSection] = useState<ComponentType | null>(null);
  const [isBroken, setBroken] = useState(false);
  useEffect(() => {
    fetch().then(
      (section) => setSection(() => section),
      () => setBroken(true),
    );
  }, [fetch]);
  if (isBroken) return <Note tone="warn">This part of the app could not be loaded. Reload the page.</Note>;
  return Section && <Section />;
}

function Current() {
  const isOffice = state.isOffice.value;
  const now = path.value === '/' ? (isOffice ? '/office' : '/map') : path.value;
  for (const [pattern, Screen] of isOffice ? [...SCREENS, ...OFFICE] : SCREENS) {
    const named = match(pattern, now);
    if (named) return <Screen key={now} id={named['id'] ?? ''} />;
  }
  return (
    <Page title="Not found" back="/">
      <Empty icon="search" title="There is nothing at this address" />
    </Page>
  );
}
