// Connected clients: a list to search, and one client with its path, live, and what can be done with it.

import { useState } from 'preact/hooks';
import { amount, dateTime, plural } from '../lib/format';
import { Careful, Filters } from '../ui/form';
import { List } from '../ui/list';
import { FactList, Empty, Tag } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { bytes, duration, rtt, share, TRANSPORTS, transportName } from './lib';
import { clientPath } from './overview';
import { BrokerScreen, useLive, useSettled } from './parts';
import { ask, LIVE_MS, mayOperate, overview } from './state';
import type { Client, SessionDetails } from './types';

/** A list that is as long as this is not asked for as often. */
const PAGE = 50;
const SEARCH_MS = 5000;
const MOST = 1000;

const nowMs = () => overview.value?.now_ms ?? Date.now();

export function Clients() {
  const [wanted, setWanted] = useState({ client: '', transport: '', slow: '' });
  const [most, setMost] = useState(PAGE);
  const client = useSettled(wanted.client);
  const query = new URLSearchParams({
    limit: String(most),
    ...(client && { client }),
    ...(wanted.transport && { transport: wanted.transport }),
    ...(wanted.slow && { queued: '1' }),
  });
  // A search may look at many clients to find few.
  const isPlain = query.size === 1 && most === PAGE;
  const { data, problem } = useLive<{ clients: Client[]; next?: number }>(
    `/clients?${query.toString()}`,
    isPlain ? LIVE_MS : SEARCH_MS,
  );
  const now = nowMs();
  const dash = <span class="muted none">–</span>;
  const transports = TRANSPORTS.map((one) => [one, transportName(one)] as const);
  return (
    <BrokerScreen>
      <Filters
        fields={[
          { name: 'client', label: 'Client identifier begins with', kind: 'search' },
          { name: 'transport', label: 'Transport', options: [['', 'All transports'], ...transports] },
          { name: 'slow', label: 'Messages wait', kind: 'checkbox' },
        ]}
        values={wanted}
        onChange={setWanted}
      />
      <List
        caption="Connected clients"
        testid="clients"
        rows={data?.clients}
        problem={problem}
        empty={
          query.size === 1
            ? { icon: 'devices', title: 'No client is connected' }
            : { icon: 'devices', title: 'No client matches', hint: 'Search for another beginning.' }
        }
        rowKey={(one) => one.client}
        columns={[
          {
            name: 'Client',
            cell: (one) => (
              <Link to={clientPath(one.client)} class="name">
                {one.client}
              </Link>
            ),
          },
          { name: 'User', cell: (one) => one.user ?? <span class="muted">anonymous</span> },
          { name: 'Address', cell: (one) => one.address },
          { name: 'Transport', cell: (one) => transportName(one.transport) },
          { name: 'For', number: true, cell: (one) => duration(now - one.since_ms) },
          { name: 'RTT', number: true, cell: (one) => (one.path ? rtt(one.path, nowMs()) : dash) },
          { name: 'Loss', number: true, cell: (one) => (one.path ? share(one.path.loss) : dash) },
          { name: 'Moved', number: true, cell: (one) => (one.path ? amount(one.path.migrations) : dash) },
          { name: 'Queued', number: true, cell: (one) => amount(one.queued_messages) },
          { name: 'Waits for', cell: (one) => one.waiting?.cause ?? dash },
        ]}
        onMore={data?.next !== undefined && most < MOST && (() => setMost(Math.min(MOST, most * 4)))}
        rest={
          data?.next !== undefined &&
          most >= MOST &&
          `These are the first ${amount(MOST)}. Search for others.`
        }
      />
    </BrokerScreen>
  );
}

export function ClientPage({ id }: { id: string }) {
  const path = `/clients/${encodeURIComponent(id)}`;
  const { data: client, problem, again } = useLive<Client>(path);
  const { data: session } = useLive<SessionDetails>(`/sessions/${encodeURIComponent(id)}`, SEARCH_MS);
  const [isGone, setGone] = useState(false);
  const disconnect = async () => {
    await ask(path, { method: 'DELETE' });
    setGone(true);
    again();
  };
  return (
    <BrokerScreen title={id} back="/broker/clients">
      {!client && problem && (
        <Empty icon="offline" title={isGone ? 'The client is disconnected' : 'This client is not connected'}>
          <Link to={`/broker/sessions/${encodeURIComponent(id)}`}>Its session</Link> may still exist.
        </Empty>
      )}
      {client && (
        <>
          {mayOperate.value && (
            <div class="row" data-testid="actions">
              <Careful
                label="Disconnect"
                question={`Disconnect ${id}?`}
                yes="Disconnect"
                done={`${id} gets disconnected.`}
                onYes={disconnect}
              >
                <p>It may connect again at once. Its session and its messages stay.</p>
              </Careful>
              <Ban client={id} again={again} />
              <button
                type="button"
                class="small"
                onClick={() => navigate(`/broker/rules?client=${encodeURIComponent(id)}`)}
              >
                Explain its rights
              </button>
            </div>
          )}
          <div class="pair">
            <Connection client={client} />
            <Path client={client} />
          </div>
        </>
      )}
      {session && <Subscriptions session={session} />}
    </BrokerScreen>
  );
}

const BANS = { 600: '10 minutes', 3600: '1 hour', 86400: '1 day' };

function Ban({ client, again }: { client: string; again: () => void }) {
  return (
    <Careful
      label="Ban"
      question={`Ban ${client}?`}
      yes="Ban"
      done={`${client} is banned.`}
      fields={[{ name: 'for_s', label: 'For', options: BANS }]}
      initial={{ for_s: '3600' }}
      onYes={async ({ for_s }) => {
        const json = { client, for_s: Number(for_s), reason: 'from the broker’s page' };
        await ask('/bans', { method: 'POST', json });
        again();
      }}
    >
      <p>It gets disconnected, and is refused until the ban ends.</p>
    </Careful>
  );
}

function Connection({ client }: { client: Client }) {
  const now = overview.value?.now_ms ?? Date.now();
  return (
    <section class="card" aria-labelledby="connection-head" data-testid="connection">
      <h2 id="connection-head">Connection</h2>
      <FactList
        facts={[
          ['Address', <span data-testid="address">{client.address}</span>],
          ['User', client.user ?? 'anonymous'],
          ['Transport', transportName(client.transport)],
          ['Connected', `${dateTime(client.since_ms)}, for ${duration(now - client.since_ms)}`],
          ['Queue', `${plural(client.queued_messages, 'message')}, ${bytes(client.queued_bytes)}`],
          [
            'Waits',
            client.waiting ? `for ${duration(client.waiting.age_ms)}: ${client.waiting.description}` : null,
          ],
        ]}
      />
    </section>
  );
}

function Path({ client }: { client: Client }) {
  const { path } = client;
  return (
    <section class="card" aria-labelledby="path-head" data-testid="path">
      <h2 id="path-head">Path</h2>
      {!path && (
        <p class="muted">The broker measures paths over QUIC only, after the first seconds of use.</p>
      )}
      {path && (
        <FactList
          facts={[
            ['Round-trip time', rtt(path, nowMs())],
            [
              'Loss',
              `${share(path.loss)} (${amount(path.lost_packets)} of ${amount(path.sent_packets)} packets)`,
            ],
            ['Address changes', <span data-testid="migrations">{amount(path.migrations)}</span>],
            ['0-RTT', path.early_data ? <Tag tone="good">resumed</Tag> : 'no'],
            ['Sent', bytes(path.sent_bytes)],
            ['Received', bytes(path.received_bytes)],
            [
              'Congestion window',
              `${bytes(path.cwnd_bytes)}, reduced ${amount(path.congestion_events)} times`,
            ],
            ['Largest datagram', bytes(path.mtu_bytes)],
            ['Streams', amount(path.streams)],
          ]}
        />
      )}
    </section>
  );
}

export function Subscriptions({ session }: { session: SessionDetails }) {
  return (
    <section class="stack" aria-labelledby="subscriptions-head">
      <h2 id="subscriptions-head">{plural(session.subscriptions, 'subscription')}</h2>
      <List
        caption="Subscriptions"
        rows={session.filters}
        rowKey={(one) => one.filter}
        columns={[
          { name: 'Filter', cell: (one) => <code>{one.filter}</code> },
          { name: 'QoS', number: true, cell: (one) => one.qos },
          { name: 'Flow', number: true, cell: (one) => (one.flow === 0 ? 'control' : one.flow) },
        ]}
      />
    </section>
  );
}
