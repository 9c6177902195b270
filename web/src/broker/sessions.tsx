// Sessions, connected or not, and one session with its subscriptions and queue.

import { useState } from 'preact/hooks';
import { amount, dateTime, plural } from '../lib/format';
import { Careful } from '../ui/form';
import { List } from '../ui/list';
import { FactList, Choice, Empty, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { Subscriptions } from './clients';
import { bytes, duration } from './lib';
import { clientPath } from './overview';
import { BrokerScreen, useLive } from './parts';
import { ask, mayOperate } from './state';
import type { Session, SessionDetails } from './types';

const EVERY_MS = 5000;
const PAGE = 50;
const MOST = 1000;
const NEVER_S = 4_294_967_295;

type Which = 'all' | 'away' | 'queued';

export function Sessions() {
  const [which, setWhich] = useState<Which>('all');
  const [most, setMost] = useState(PAGE);
  const filter = { all: '', away: '&connected=false', queued: '&queued=1' }[which];
  const wanted = `/sessions?limit=${most}${filter}`;
  const { data, problem } = useLive<{ sessions: Session[]; next?: string }>(wanted, EVERY_MS);
  return (
    <BrokerScreen>
      <Choice
        label="Which sessions"
        value={which}
        options={{ all: 'All', away: 'Not connected', queued: 'With messages' }}
        onChange={(value) => {
          setWhich(value);
          setMost(PAGE);
        }}
      />
      <List
        caption="Sessions"
        testid="sessions"
        rows={data?.sessions}
        problem={problem}
        empty={{ icon: 'lists', title: 'There is no such session' }}
        rowKey={(one) => one.client}
        columns={[
          {
            name: 'Client',
            cell: (one) => (
              <Link to={`/broker/sessions/${encodeURIComponent(one.client)}`} class="name">
                {one.client}
              </Link>
            ),
          },
          { name: 'User', cell: (one) => one.user ?? <span class="muted">anonymous</span> },
          { name: 'State', cell: (one) => <State session={one} /> },
          { name: 'Subscriptions', number: true, cell: (one) => amount(one.subscriptions) },
          { name: 'Queued', number: true, cell: (one) => amount(one.queued_messages) },
          { name: 'Size', number: true, cell: (one) => bytes(one.queued_bytes) },
          { name: 'In flight', number: true, cell: (one) => amount(one.in_flight) },
        ]}
        onMore={data?.next !== undefined && most < MOST && (() => setMost(Math.min(MOST, most * 4)))}
        rest={
          data?.next !== undefined &&
          most >= MOST &&
          `These are the first ${amount(MOST)}; fulmar ctl sessions list shows all.`
        }
      />
    </BrokerScreen>
  );
}

function State({ session }: { session: Session }) {
  return (
    <>
      <Tag tone={session.connected ? 'good' : 'neutral'}>
        {session.connected ? 'connected' : 'not connected'}
      </Tag>
      {session.internal && <Tag tone="info">internal</Tag>}
    </>
  );
}

function expiry(session: Session): string {
  if (session.expires_ms !== undefined) return `on ${dateTime(session.expires_ms)}`;
  if (session.expiry_interval_s === NEVER_S) return 'never';
  if (session.expiry_interval_s === 0) return 'with its connection';
  return `${duration(session.expiry_interval_s * 1000)} after its connection`;
}

export function SessionPage({ id }: { id: string }) {
  const path = `/sessions/${encodeURIComponent(id)}`;
  const { data: session, problem, again } = useLive<SessionDetails>(path);
  const remove = async () => {
    await ask(path, { method: 'DELETE' });
    again();
  };
  return (
    <BrokerScreen title={id} back="/broker/sessions">
      {!session && problem && <Empty icon="lists" title="There is no session of this client" />}
      {session && (
        <>
          {mayOperate.value && !session.internal && (
            <div class="row">
              <Careful
                label="Delete the session"
                question={`Delete the session of ${id}?`}
                yes="Delete the session"
                done={`The session of ${id} is deleted.`}
                onYes={remove}
              >
                <p>
                  {plural(session.queued_messages, 'queued message')} and{' '}
                  {plural(session.subscriptions, 'subscription')} are lost. Its client gets disconnected.
                </p>
              </Careful>
            </div>
          )}
          <section class="card" aria-labelledby="session-head">
            <h2 id="session-head">Session</h2>
            <FactList
              facts={[
                ['State', <State session={session} />],
                ['User', session.user ?? 'anonymous'],
                ['Version', session.version === 5 ? 'MQTT 5' : 'MQTT 3.1.1'],
                ['Stored', session.durable ? 'yes' : 'no, it ends with the broker'],
                ['Expires', expiry(session)],
                ['Queue', `${plural(session.queued_messages, 'message')}, ${bytes(session.queued_bytes)}`],
                ['In flight', plural(session.in_flight, 'message')],
                ['Will', session.will_topic === undefined ? null : <code>{session.will_topic}</code>],
                [
                  'Client',
                  session.connected ? <Link to={clientPath(session.client)}>connection</Link> : null,
                ],
              ]}
            />
          </section>
          <Subscriptions session={session} />
        </>
      )}
    </BrokerScreen>
  );
}
