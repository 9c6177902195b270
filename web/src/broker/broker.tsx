// The broker's page: its screens, who may see them, and the frame around them. Fetched when an operator opens it.

import { useEffect } from 'preact/hooks';
import type { ComponentChildren, ComponentType } from 'preact';
import * as app from '../state';
import { Icon, Logo } from '../ui/icons';
import { Empty, Note, Page } from '../ui/parts';
import { Link, match, path } from '../ui/router';
import { Shell } from '../ui/shell';
import { ClientPage, Clients } from './clients';
import { Overview } from './overview';
import { Rules } from './rules';
import { ServerPage } from './server';
import { SessionPage, Sessions } from './sessions';
import { SignIn } from './sign-in';
import { follow, isOpen, isPlatforms, logOut, me, problem, recognise } from './state';
import { Topics } from './topics';
import './broker.css';

const SCREENS: readonly (readonly [string, ComponentType<{ id: string }>])[] = [
  ['/broker', Overview],
  ['/broker/login', Overview],
  ['/broker/clients', Clients],
  ['/broker/clients/:id', ClientPage],
  ['/broker/sessions', Sessions],
  ['/broker/sessions/:id', SessionPage],
  ['/broker/topics', Topics],
  ['/broker/rules', Rules],
  ['/broker/server', ServerPage],
];

const AGAIN_MS = 3000;

export function Section() {
  const isKnown = me.value !== null;
  const user = app.session.value?.token;
  useEffect(() => {
    void recognise();
  }, [user]);
  useEffect(() => {
    if (isKnown) return;
    // The server may be starting.
    const timer = setInterval(() => void recognise(), AGAIN_MS);
    return () => clearInterval(timer);
  }, [isKnown]);
  const now = path.value === '/' ? '/broker' : path.value;
  const isOnlooker = me.value === undefined && isOpen.value && now === '/broker';
  const isIn = Boolean(me.value) || isOnlooker;
  useEffect(() => (isIn ? follow() : undefined), [isIn]);
  if (isPlatforms.value) return <Shell>{isIn ? <Current /> : <Waiting />}</Shell>;
  if (me.value === undefined && !isOnlooker) return <SignIn />;
  return <Frame>{isIn ? <Current /> : <Waiting />}</Frame>;
}

function Waiting() {
  return (
    <Page title="Broker">
      {problem.value ? (
        <Note tone="warn" role="status">
          {problem.value} The page tries again by itself.
        </Note>
      ) : (
        <p class="muted" role="status">
          Loading …
        </p>
      )}
    </Page>
  );
}

function Current() {
  const now = path.value.startsWith('/broker') ? path.value : '/broker';
  for (const [pattern, Screen] of SCREENS) {
    const named = match(pattern, now);
    if (named) return <Screen key={now} id={named['id'] ?? ''} />;
  }
  return (
    <Page title="Not found" back="/broker">
      <Empty icon="search" title="There is nothing at this address" />
    </Page>
  );
}

/** The frame for those who have no account of the platform. */
function Frame({ children }: { children: ComponentChildren }) {
  const { notice } = app;
  return (
    <div class="shell broker-shell">
      <a class="skip" href="#main">
        Skip to content
      </a>
      <header class="top">
        <Link to="/broker" class="brand" aria-label="Fulmar, the broker's overview">
          <Logo size={30} />
          <span>Fulmar</span>
        </Link>
        {me.value && (
          <>
            <span class="twin">
              {me.value.name} · {me.value.role}
            </span>
            <button type="button" class="status" onClick={() => void logOut()} data-testid="logout">
              <Icon name="out" size={18} /> Log out
            </button>
          </>
        )}
      </header>
      <main id="main" tabIndex={-1}>
        {children}
      </main>
      <div class="notice-place" role="status" aria-live="polite">
        {notice.value && <div class={`notice ${notice.value.kind}`}>{notice.value.text}</div>}
      </div>
    </div>
  );
}
