// The frame around every screen: name and state at the top, the ways around at the bottom (phone) or the
// side (desk), and messages. Which ways there are depends on the role.

import type { ComponentChildren } from 'preact';
import * as state from '../state';
import { raised } from '../homes/state';
import { chooseTwin } from '../data/account';
import { flush } from '../data/sync';
import { plural } from '../lib/format';
import { Icon, Logo, type IconName } from './icons';
import { Link, path } from './router';

interface Way {
  to: string;
  text: string;
  icon: IconName;
  /** Other paths that belong to it. */
  also?: string[];
}

const FIELD: Way[] = [
  { to: '/map', text: 'Map', icon: 'map', also: ['/meters'] },
  { to: '/lists', text: 'Lists', icon: 'lists' },
  { to: '/drive', text: 'Radio', icon: 'radio', also: ['/walk'] },
  { to: '/pending', text: 'Pending', icon: 'pending' },
];
const MORE: Way = { to: '/more', text: 'More', icon: 'more', also: ['/settings', '/office', '/broker'] };

/** Sections are shown by role; another one, such as monitoring, is another list like this. */
export const OFFICE: Way[] = [
  { to: '/office', text: 'Overview', icon: 'overview' },
  { to: '/office/lists', text: 'Assign work', icon: 'people' },
  { to: '/office/readings', text: 'Readings', icon: 'chart' },
  { to: '/office/missed', text: 'Missed meters', icon: 'missed' },
  { to: '/office/leaks', text: 'Possible leaks', icon: 'leak' },
  { to: '/office/devices', text: 'Devices', icon: 'devices' },
];

/** An installation of homes. */
const HOMES: Way[] = [
  { to: '/', text: 'Homes', icon: 'home', also: ['/homes'] },
  { to: '/alerts', text: 'Alerts', icon: 'warn' },
  { to: '/sensors', text: 'Sensors', icon: 'sensor' },
  { to: '/rules', text: 'Rules', icon: 'rules' },
];

/** For admins of the server, whatever their installations. */
export const BROKER: Way = { to: '/broker', text: 'Broker', icon: 'broker' };

function isCurrent(way: Way): boolean {
  const now = path.value;
  if (way.to === '/office') return now === '/office';
  if (way.to === '/' && now === '/') return true;
  return [way.to, ...(way.also ?? [])].some((to) => now === to || now.startsWith(`${to}/`));
}

/** How much there is to do at the end of a way. */
function waiting(to: string): number {
  if (to === '/pending') return state.counts.value.total + state.conflicts.value.length;
  return to === '/alerts' ? raised.value.length : 0;
}

function waitingText(to: string, count: number): string {
  return to === '/alerts' ? `${plural(count, 'alert')} not acknowledged` : `${plural(count, 'item')} waiting`;
}

function WayLink({ way }: { way: Way }) {
  const waits = waiting(way.to);
  return (
    <Link
      to={way.to}
      aria-current={isCurrent(way) ? 'page' : undefined}
      data-testid={`nav-${way.text.toLowerCase().replace(/ /g, '-')}`}
    >
      <span class="way-icon">
        <Icon name={way.icon} size={24} />
        {waits > 0 && <b class="badge">{waits > 999 ? '999+' : waits}</b>}
      </span>
      <span>
        {way.text}
        {waits > 0 && <span class="sr-only">, {waitingText(way.to, waits)}</span>}
      </span>
    </Link>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const isHomes = state.isHomes.value;
  const ways = isHomes ? HOMES : FIELD;
  const isOffice = state.isOffice.value && !isHomes;
  return (
    <div class="shell">
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <Link to="/" class="brand" aria-label="Fulmar, start page">
          <Logo size={30} />
          <span>Fulmar</span>
        </Link>
        <TwinChoice />
        <Status />
      </header>
      <nav class="side" aria-label="Main">
        {ways.map((way) => (
          <WayLink key={way.to} way={way} />
        ))}
        {isOffice && <p class="side-head">Office</p>}
        {isOffice && OFFICE.map((way) => <WayLink key={way.to} way={way} />)}
        {state.isServerAdmin.value && <p class="side-head">Server</p>}
        {state.isServerAdmin.value && <WayLink way={BROKER} />}
        <span class="grow" />
        <WayLink way={{ to: '/settings', text: 'Settings', icon: 'settings' }} />
      </nav>
      <main id="main" tabIndex={-1}>
        <Banners />
        {children}
      </main>
      <nav class="tabs" aria-label="Main">
        {[...ways, MORE].map((way) => (
          <WayLink key={way.to} way={way} />
        ))}
      </nav>
      <Notice />
    </div>
  );
}

function TwinChoice() {
  const twins = state.user.value?.twins ?? [];
  if (twins.length < 2) return <span class="twin">{twins[0]?.name ?? ''}</span>;
  return (
    <select
      class="twin"
      aria-label="Installation"
      value={state.twin.value?.id ?? ''}
      onChange={(event) => void chooseTwin(event.currentTarget.value)}
    >
      {twins.map((one) => (
        <option key={one.id} value={one.id}>
          {one.name}
        </option>
      ))}
    </select>
  );
}

function statusText(): { text: string; kind: string } {
  const waits = state.counts.value.total;
  if (state.isHomes.value) return homesStatus();
  if (!state.online.value) return { text: waits ? `Offline · ${waits} waiting` : 'Offline', kind: 'offline' };
  if (state.sending.value) return { text: `Sending ${waits}`, kind: 'busy' };
  if (waits > 0) return { text: `${waits} waiting`, kind: 'waiting' };
  if (state.live.value === 'webtransport' || state.live.value === 'websocket')
    return { text: 'Live', kind: 'live' };
  return { text: 'All sent', kind: 'sent' };
}

function homesStatus(): { text: string; kind: string } {
  const isLive = state.live.value === 'webtransport' || state.live.value === 'websocket';
  if (isLive) return { text: 'Live', kind: 'live' };
  return state.online.value ? { text: 'Polling', kind: 'waiting' } : { text: 'Offline', kind: 'offline' };
}

function Status() {
  const { text, kind } = statusText();
  const how = state.live.value;
  const title =
    how === 'off' || how === 'connecting'
      ? 'No live connection'
      : `Live over ${how === 'webtransport' ? 'WebTransport' : 'WebSocket'}`;
  return (
    <Link
      to={state.isHomes.value ? '/' : '/pending'}
      class={`status ${kind}`}
      data-testid="status"
      data-live={how}
      title={title}
    >
      <i aria-hidden="true" />
      <span role="status">{text}</span>
    </Link>
  );
}

function Banners() {
  const update = state.updateReady.value;
  return (
    <>
      {state.expired.value && (
        <div class="banner warn" role="alert">
          <span>Your login has ended. Go on working; log in again to send.</span>
          <Link to="/login" class="button small">
            Log in
          </Link>
        </div>
      )}
      {update && (
        <div class="banner info" role="status">
          <span>A new version is ready.</span>
          <button type="button" class="small" onClick={update}>
            Restart
          </button>
        </div>
      )}
    </>
  );
}

function Notice() {
  const notice = state.notice.value;
  return (
    <div class="notice-place" role="status" aria-live="polite">
      {notice && <div class={`notice ${notice.kind}`}>{notice.text}</div>}
    </div>
  );
}

export function sendNow(): void {
  void flush().then((report) => {
    if (report?.stopped) state.say(report.stopped.message, 'bad');
    else if (report && report.sent > 0) state.say(`${plural(report.sent, 'item')} sent.`, 'good');
  });
}
