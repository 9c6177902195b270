// Every page of the app: its address, title and icon, who sees it, where navigation has it, and what loads it. Router,
// navigation and titles read this table; a new page is a line here.

import { raised } from './homes/state';
import { plural } from './lib/format';
import { List, Lists } from './pages/lists';
import { MapPage } from './pages/map';
import { MeterPage } from './pages/meter';
import { Devices } from './pages/office-devices';
import { OfficeLists } from './pages/office-lists';
import { Leaks, Missed } from './pages/office-meters';
import { Overview } from './pages/office-overview';
import { Readings } from './pages/office-readings';
import { Pending } from './pages/pending';
import { Drive, Walk } from './pages/radio';
import { More, Settings } from './pages/settings';
import * as state from './state';
import type { Route } from './ui/router';

const everybody = () => true;
/** Installations of meters. */
const field = () => !state.isHomes.value;
/** Not readers: the server would refuse what these pages ask for. */
const office = () => field() && state.isOffice.value;
/** Installations of homes. */
const residents = () => state.isHomes.value;

/** Pages that are fetched when the first of them is opened: most people need only some. */
function section<P>(fetch: () => Promise<P>) {
  let known: P | null = null;
  return <K extends keyof P>(page: K) =>
    () =>
      known?.[page] ?? fetch().then((pages) => (known = pages)[page]);
}
const homes = section(() => import('./homes/section'));
/** For operators; it asks who that is. */
const broker = section(() => import('./broker/broker'));

const pending = () => {
  const count = state.counts.value.total + state.conflicts.value.length;
  return { count, text: `${plural(count, 'item')} waiting` };
};
const alerts = () => {
  const count = raised.value.length;
  return { count, text: `${plural(count, 'alert')} not acknowledged` };
};

// prettier-ignore
export const ROUTES: readonly Route[] = [
  { path: '/map', title: 'Map', icon: 'map', menu: 'main', who: field, load: () => MapPage },
  { path: '/lists', title: 'Work lists', name: 'Lists', icon: 'lists', menu: 'main', who: field, load: () => Lists },
  { path: '/lists/:id', title: 'Work list', who: field, load: () => List },
  { path: '/drive', title: 'Drive-by', name: 'Radio', icon: 'radio', menu: 'main', who: field, load: () => Drive },
  { path: '/walk', title: 'Walk-by', under: '/drive', who: field, load: () => Walk },
  { path: '/pending', title: 'Pending', icon: 'pending', menu: 'main', who: field, load: () => Pending, waiting: pending },
  { path: '/meters/:id', title: 'Meter', under: '/map', who: field, load: () => MeterPage },

  { path: '/office', title: 'Overview', icon: 'overview', menu: 'office', who: office, load: () => Overview },
  { path: '/office/lists', title: 'Assign work', icon: 'people', menu: 'office', who: office, load: () => OfficeLists },
  { path: '/office/readings', title: 'Readings', icon: 'chart', menu: 'office', who: office, load: () => Readings },
  { path: '/office/missed', title: 'Missed meters', icon: 'missed', menu: 'office', who: office, load: () => Missed },
  { path: '/office/leaks', title: 'Possible leaks', icon: 'leak', menu: 'office', who: office, load: () => Leaks },
  { path: '/office/devices', title: 'Devices', icon: 'devices', menu: 'office', who: office, load: () => Devices },

  { path: '/homes', title: 'Homes', icon: 'home', menu: 'main', who: residents, load: homes('Homes') },
  { path: '/homes/:id', title: 'Home', who: residents, load: homes('HomePage') },
  { path: '/alerts', title: 'Alerts', icon: 'warn', menu: 'main', who: residents, load: homes('Alerts'), waiting: alerts },
  { path: '/sensors', title: 'Sensors', icon: 'sensor', menu: 'main', who: residents, load: homes('Sensors') },
  { path: '/rules', title: 'Rules', icon: 'rules', menu: 'main', who: residents, load: homes('Rules') },

  { path: '/broker', title: 'Broker', section: 'Overview', icon: 'broker', menu: 'server', who: everybody, load: broker('Overview') },
  { path: '/broker/login', title: 'Broker', who: everybody, load: broker('Overview') },
  { path: '/broker/clients', title: 'Clients', section: 'Clients', who: everybody, load: broker('Clients') },
  { path: '/broker/clients/:id', title: 'Client', who: everybody, load: broker('ClientPage') },
  { path: '/broker/sessions', title: 'Sessions', section: 'Sessions', who: everybody, load: broker('Sessions') },
  { path: '/broker/sessions/:id', title: 'Session', who: everybody, load: broker('SessionPage') },
  { path: '/broker/topics', title: 'Topics', section: 'Topics', who: everybody, load: broker('Topics') },
  { path: '/broker/rules', title: 'Rules', section: 'Rules', who: everybody, load: broker('Rules') },
  { path: '/broker/server', title: 'Server', section: 'Server', who: everybody, load: broker('ServerPage') },

  { path: '/settings', title: 'Settings', icon: 'settings', menu: 'device', who: everybody, load: () => Settings },
  { path: '/more', title: 'More', icon: 'more', menu: 'more', who: everybody, load: () => More },
];

/** What the app's first page is depends on who opens it; without a platform, all of it is the broker's. */
export function resolve(path: string): string {
  const isBroker = path === '/broker' || path.startsWith('/broker/');
  if (state.config.value?.platform === false && !isBroker) return '/broker';
  if (path !== '/') return path;
  if (state.isHomes.value) return '/homes';
  return state.isOffice.value ? '/office' : '/map';
}

export const brokerFrame = broker('Section');
