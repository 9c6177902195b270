// The frame around every screen: name and state at the top, the ways around at the bottom (phone) or the
// side (desk), and messages. Which ways there are depends on the role.

import type { ComponentChildren } from 'preact';
import * as state from '../state';
import { chooseTwin } from '../data/account';
import { flush } from '../data/sync';
import { plural } from '../lib/format';
import { Icon, Logo } from './icons';
import { currentOf, Link, menu, type Route } from './router';

/** What is not on a phone's bar, each with its heading. */
export function furtherMenus(): { head: string; ways: Route[] }[] {
  const all = [
    { head: 'Office', ways: menu('office') },
    // Admins of the server, whatever their installations.
    { head: 'Server', ways: state.isServerAdmin.value ? menu('server') : [] },
  ];
  return all.filter(({ ways }) => ways.length > 0);
}

function Way({ way, isCurrent }: { way: Route; isCurrent: boolean }) {
  const { count: waits, text } = way.waiting?.() ?? { count: 0, text: '' };
  const name = way.name ?? way.title;
  return (
    <Link
      to={way.path}
      aria-current={isCurrent ? 'page' : undefined}
      data-testid={`nav-${name.toLowerCase().replace(/ /g, '-')}`}
    >
      <span class="way-icon">
        {way.icon && <Icon name={way.icon} size={24} />}
        {waits > 0 && <b class="badge">{waits > 999 ? '999+' : waits}</b>}
      </span>
      <span>
        {name}
        {waits > 0 && <span class="sr-only">, {text}</span>}
      </span>
    </Link>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const [main, more, device] = [menu('main'), menu('more'), menu('device')];
  const further = furtherMenus();
  const inSide = currentOf([...main, ...further.flatMap(({ ways }) => ways), ...device]);
  const inTabs = currentOf(main) ?? more[0];
  const side = (way: Route) => <Way key={way.path} way={way} isCurrent={way === inSide} />;
  return (
    <div class="shell">
      <Skip />
      <header class="top">
        <Brand to="/" label="Fulmar, start page" />
        <TwinChoice />
        <Status />
      </header>
      <nav class="side" aria-label="Main">
        {main.map(side)}
        {further.map(({ head, ways }) => [
          <p key={head} class="side-head">
            {head}
          </p>,
          ...ways.map(side),
        ])}
        <span class="grow" />
        {device.map(side)}
      </nav>
      <main id="main" tabIndex={-1}>
        <Banners />
        {children}
      </main>
      <nav class="tabs" aria-label="Main">
        {[...main, ...more].map((way) => (
          <Way key={way.path} way={way} isCurrent={way === inTabs} />
        ))}
      </nav>
      <Notice />
    </div>
  );
}

export function Skip() {
  return (
    <a class="skip" href="#main">
      Skip to content
    </a>
  );
}

export function Brand({ to, label }: { to: string; label: string }) {
  return (
    <Link to={to} class="brand" aria-label={label}>
      <Logo size={30} />
      <span>Fulmar</span>
    </Link>
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
  const [isHomes, isLive] = [state.isHomes.value, state.isLive.value];
  const waits = isHomes ? 0 : state.counts.value.total;
  if (!state.online.value && !(isHomes && isLive))
    return { text: waits ? `Offline · ${waits} waiting` : 'Offline', kind: 'offline' };
  if (waits > 0 && state.sending.value) return { text: `Sending ${waits}`, kind: 'busy' };
  if (waits > 0) return { text: `${waits} waiting`, kind: 'waiting' };
  if (isLive) return { text: 'Live', kind: 'live' };
  return isHomes ? { text: 'Polling', kind: 'waiting' } : { text: 'All sent', kind: 'sent' };
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

export function Notice() {
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
