// The broker's pages, who may see them, and the frame around them. Fetched when an operator opens one.

import { useEffect } from 'preact/hooks';
import type { ComponentChildren } from 'preact';
import * as app from '../state';
import { Icon } from '../ui/icons';
import { Loading } from '../ui/list';
import { Current } from '../ui/outlet';
import { Note, Page } from '../ui/parts';
import { address } from '../ui/router';
import { Brand, Notice, Shell, Skip } from '../ui/shell';
import { SignIn } from './sign-in';
import { follow, isOpen, isPlatforms, logOut, me, problem, recognise } from './state';
import './broker.css';

export { ClientPage, Clients } from './clients';
export { Overview } from './overview';
export { Rules } from './rules';
export { ServerPage } from './server';
export { SessionPage, Sessions } from './sessions';
export { Topics } from './topics';

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
  const isOnlooker = me.value === undefined && isOpen.value && address.value === '/broker';
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
        <Loading />
      )}
    </Page>
  );
}

/** The frame for those who have no account of the platform. */
function Frame({ children }: { children: ComponentChildren }) {
  return (
    <div class="shell broker-shell">
      <Skip />
      <header class="top">
        <Brand to="/broker" label="Fulmar, the broker's overview" />
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
      <Notice />
    </div>
  );
}
