// Connected clients: a list to search, and one client with its path, live, and what can be done with it.

import { useState } from 'preact/hooks';
import { amount, dateTime, plural } from '../lib/format';
import { Empty, Field, Note, Table, Tag } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { bytes, duration, rtt, share, TRANSPORTS, transportName } from './lib';
import { clientPath } from './overview';
import { attempt, BrokerScreen, Careful, Facts, useLive, useSettled } from './parts';
import { LIVE_MS, mayOperate, overview } from './state';
import type { Client, SessionDetails } from './types';

/** A list that is as long as this is not asked for as often. */
const PAGE = 50;
const SEARCH_MS = 5000;
const MOST = 1000;

const nowMs = () => overview.value?.now_ms ?? Date.now();

export function Clients() {
  const [text, setText] = useState('');
  const [transport, setTransport] = useState('');
  const [isSlow, setSlow] = useState(false);
  const [most, setMost] = useState(PAGE);
  const settled = useSettled(text);
  const query = new URLSearchParams({ limit: String(most) });
  if (settled) query.set('client', settled);
  if (transport) query.set('transport', transport);
  if (isSlow) query.set('queued', '1');
  // A search may look at many clients to find few.
  const isPlain = !settled && !transport && !isSlow && most === PAGE;
  const wanted = `/clients?${query.toString()}`;
  const { data, problem } = useLive<{ clients: Client[]; next?: number }>(
    wanted,
    isPlain ? LIVE_MS : SEARCH_MS,
  );
  return (
    <BrokerScreen title="Clients">
      <div class="filters">
        <label>
          <span class="sr-only">Client identifier begins with</span>
          <input
            type="search"
            placeholder="Client identifier begins with"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
            data-testid="search"
          />
        </label>
        <select
          aria-label="Transport"
          value={transport}
          onChange={(event) => setTransport(event.currentTarget.value)}
        >
          <option value="">All transports</option>
          {TRANSPORTS.map((one) => (
            <option key={one} value={one}>
              {transportName(one)}
            </option>
          ))}
        </select>
        <label class="check">
          <input
            type="checkbox"
            checked={isSlow}
            onChange={(event) => setSlow(event.currentTarget.checked)}
          />
          <span>Messages wait</span>
        </label>
      </div>
      {problem && <Note tone="warn">{problem}</Note>}
      {data && data.clients.length === 0 && (
        <Empty icon="devices" title={isPlain ? 'No client is connected' : 'No client matches'} />
      )}
      {data && data.clients.length > 0 && <ClientTable clients={data.clients} />}
      {data?.next !== undefined && most < MOST && (
        <button type="button" onClick={() => setMost(Math.min(MOST, most * 4))}>
          Show more
        </button>
      )}
      {data?.next !== undefined && most >= MOST && (
        <p class="muted">These are the first {amount(MOST)}. Search for others.</p>
      )}
    </BrokerScreen>
  );
}

function ClientTable({ clients }: { clients: Client[] }) {
  const now = overview.value?.now_ms ?? Date.now();
  const dash = <span class="muted none">–</span>;
  return (
    <Table
      caption="Connected clients"
      rows={clients}
      rowKey={(one) => one.client}
      testid="clients"
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
    />
  );
}

export function ClientPage({ id }: { id: string }) {
  const path = `/clients/${encodeURIComponent(id)}`;
  const { data: client, problem, again } = useLive<Client>(path);
  const { data: session } = useLive<SessionDetails>(`/sessions/${encodeURIComponent(id)}`, SEARCH_MS);
  const [isGone, setGone] = useState(false);
  const disconnect = async () => {
    const done = await attempt(path, { method: 'DELETE' }, `${id} gets disconnected.`);
    setGone(done);
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
              <Careful label="Disconnect" question={`Disconnect ${id}?`} onYes={disconnect}>
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

const BANS: readonly (readonly [string, string])[] = [
  ['600', '10 minutes'],
  ['3600', '1 hour'],
  ['86400', '1 day'],
];

function Ban({ client, again }: { client: string; again: () => void }) {
  const [seconds, setSeconds] = useState('3600');
  const ban = async () => {
    const json = { client, for_s: Number(seconds), reason: 'from the broker’s page' };
    await attempt('/bans', { method: 'POST', json }, `${client} is banned.`);
    again();
  };
  return (
    <Careful label="Ban" question={`Ban ${client}?`} onYes={ban}>
      <p>It gets disconnected, and is refused until the ban ends.</p>
      <Field label="For" id="ban-for">
        <select id="ban-for" value={seconds} onChange={(event) => setSeconds(event.currentTarget.value)}>
          {BANS.map(([value, text]) => (
            <option key={value} value={value}>
              {text}
            </option>
          ))}
        </select>
      </Field>
    </Careful>
  );
}

function Connection({ client }: { client: Client }) {
  const now = overview.value?.now_ms ?? Date.now();
  return (
    <section class="card" aria-labelledby="connection-head" data-testid="connection">
      <h2 id="connection-head">Connection</h2>
      <Facts
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
        <Facts
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
      {session.filters.length > 0 && (
        <Table
          caption="Subscriptions"
          rows={session.filters}
          rowKey={(one) => one.filter}
          columns={[
            { name: 'Filter', cell: (one) => <code>{one.filter}</code> },
            { name: 'QoS', number: true, cell: (one) => one.qos },
            { name: 'Flow', number: true, cell: (one) => (one.flow === 0 ? 'control' : one.flow) },
          ]}
        />
      )}
    </section>
  );
}
