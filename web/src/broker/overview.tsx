// The broker at a glance: what is connected and how well, what flows, and what wants attention.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { amount, decimal, plural } from '../lib/format';
import { List } from '../ui/list';
import { Choice, Note, Tag, Tiles } from '../ui/parts';
import { Link } from '../ui/router';
import { bytes, duration, milliseconds, rateNow, rates, share, total, transportName } from './lib';
import { OverviewScreen } from './parts';
import { RateChart } from './rate-chart';
import { me, samples } from './state';
import type { NamedClient, Overview as Shown, Transport } from './types';

export function Overview() {
  return (
    <OverviewScreen>
      {(now) => (
        <>
          <Health now={now} />
          {!me.value && <Onlooker />}
          <Figures now={now} />
          <Flow />
          <Transports now={now} />
          <div class="pair">
            <Slowest clients={now.quality.slowest} />
            <WorstPaths clients={now.quality.worst_paths} />
          </div>
          <p class="muted small-text">
            Fulmar {now.version}, running for {duration(now.now_ms - now.started_ms)}
          </p>
        </>
      )}
    </OverviewScreen>
  );
}

function Health({ now }: { now: Shown }) {
  const { verdict, reasons } = now.health;
  const words = { good: 'All is well', warn: 'Needs attention', bad: 'Something does not work' }[verdict];
  return (
    <section class="stack" aria-label="Health" data-testid="health">
      <p>
        <Tag tone={verdict}>{words}</Tag>
      </p>
      {reasons.map(({ verdict, text }) => (
        <Note key={text} tone={verdict} role="status">
          {text}
        </Note>
      ))}
    </section>
  );
}

/** Without a login, where everybody on the broker's machine may see the overview. */
function Onlooker() {
  return (
    <p class="muted small-text" data-testid="onlooker">
      Everybody on this machine sees this overview. <Link to="/broker/login">Log in</Link> to see more and to
      operate the broker; on the broker's machine, <code>fulmar ctl users add NAME --role administrator</code>{' '}
      makes a user who may.
    </p>
  );
}

function Figures({ now }: { now: Shown }) {
  const received = rateNow(samples.value, (one) => one.received);
  const sent = rateNow(samples.value, (one) => one.sent);
  const slow = now.quality.transports.reduce((sum, one) => sum + one.queued_messages, 0);
  const rate = (value: number | null) => (value === null ? '–' : decimal(value, value < 10 ? 1 : 0));
  const tiles: Parameters<typeof Tiles>[0]['tiles'] = [
    { to: '/broker/clients', icon: 'devices', value: total(now.connections), name: 'connections' },
    { to: '/broker', icon: 'export', value: rate(received), name: 'messages received per second' },
    { to: '/broker', icon: 'pending', value: rate(sent), name: 'messages sent per second' },
    { to: '/broker/clients', icon: 'lists', value: slow, name: 'messages wait for clients' },
    { to: '/broker/sessions', icon: 'people', value: now.sessions, name: 'sessions' },
  ];
  return <Tiles testid="broker-tiles" tiles={tiles} />;
}

type What = 'messages' | 'bytes' | 'connections';
type Span = '5' | '60';

function Flow() {
  const [what, setWhat] = useState<What>('messages');
  const [span, setSpan] = useState<Span>('5');
  const toMs = samples.value.at(-1)?.atMs ?? Date.now();
  const fromMs = toMs - Number(span) * 60_000;
  const shown = samples.value.filter((one) => one.atMs >= fromMs - 10_000);
  const times = shown.map((one) => one.atMs);
  const lines = {
    messages: [
      { name: 'received', values: rates(shown, (one) => one.received) },
      { name: 'sent', values: rates(shown, (one) => one.sent) },
      { name: 'dropped', values: rates(shown, (one) => one.dropped) },
    ],
    bytes: [
      { name: 'received', values: rates(shown, (one) => one.bytesReceived / 1000) },
      { name: 'sent', values: rates(shown, (one) => one.bytesSent / 1000) },
    ],
    connections: [{ name: 'connections', values: shown.map((one) => one.connections) }],
  }[what];
  const unit = { messages: 'messages/s', bytes: 'kB/s', connections: 'connections' }[what];
  return (
    <section class="card" aria-labelledby="flow-head">
      <div class="row">
        <h2 id="flow-head" class="grow">
          Over time
        </h2>
        <Choice
          label="What the chart shows"
          value={what}
          options={{ messages: 'Messages', bytes: 'Bytes', connections: 'Connections' }}
          onChange={setWhat}
        />
        <Choice
          label="Time that the chart shows"
          value={span}
          options={{ 5: '5 min', 60: '1 h' }}
          onChange={setSpan}
        />
      </div>
      <RateChart
        label={`${unit} over the last ${span} minutes`}
        unit={unit}
        times={times}
        lines={lines}
        fromMs={fromMs}
        toMs={toMs}
      />
    </section>
  );
}

const measured = (one: Transport, show: (path: NonNullable<Transport['path']>) => string) =>
  one.path ? show(one.path) : <span class="muted none">–</span>;

function Transports({ now }: { now: Shown }) {
  const { transports, ended_ms } = now.quality;
  const age = ended_ms === undefined ? null : now.now_ms - ended_ms;
  return (
    <section aria-labelledby="transports-head" class="stack">
      <h2 id="transports-head">Connected clients by transport</h2>
      <List
        caption="Connected clients by transport, with statistics of their paths"
        rows={transports}
        empty={{
          icon: 'devices',
          title: 'No client is connected',
          hint: (
            <>
              Clients connect to the listeners; <Link to="/broker/server">Server</Link> lists their addresses.
            </>
          ),
        }}
        rowKey={(one) => one.transport}
        testid="transports"
        columns={[
          { name: 'Transport', cell: (one) => <strong>{transportName(one.transport)}</strong> },
          { name: 'Clients', number: true, cell: (one) => amount(one.clients) },
          {
            name: 'RTT, median',
            number: true,
            cell: (one) => measured(one, (path) => milliseconds(path.rtt_median_us)),
          },
          {
            name: 'RTT, 95 %',
            number: true,
            cell: (one) => measured(one, (path) => milliseconds(path.rtt_95_us)),
          },
          { name: 'Loss', number: true, cell: (one) => measured(one, (path) => share(path.loss)) },
          { name: 'Moved', number: true, cell: (one) => measured(one, (path) => amount(path.moved)) },
          { name: '0-RTT', number: true, cell: (one) => measured(one, (path) => amount(path.early_data)) },
          { name: 'Queued', number: true, cell: (one) => amount(one.queued_messages) },
        ]}
      />
      <p class="muted small-text">
        Paths are measured over QUIC only. Moved: the client's address has changed since it connected. 0-RTT:
        resumed with early data.
        {age === null && ' Still counting clients …'}
        {age !== null && age > 10_000 && ` Counted ${duration(age)} ago.`}
      </p>
    </section>
  );
}

export function clientPath(client: string): string {
  return `/broker/clients/${encodeURIComponent(client)}`;
}

function Slowest({ clients }: { clients: NamedClient[] }) {
  return (
    <section class="card" aria-labelledby="slow-head" data-testid="slowest">
      <h2 id="slow-head">Slow consumers</h2>
      <Named clients={clients} empty="No message waits for a connected client.">
        {(one) => (
          <>
            {plural(one.queued_messages, 'message')}, {bytes(one.queued_bytes)} ·{' '}
            {transportName(one.transport)}
          </>
        )}
      </Named>
    </section>
  );
}

function WorstPaths({ clients }: { clients: NamedClient[] }) {
  return (
    <section class="card" aria-labelledby="paths-head">
      <h2 id="paths-head">Worst paths</h2>
      <Named clients={clients} empty="No client loses 1 % of its packets.">
        {(one) => (
          <>
            <Tag tone="warn">{share(one.loss ?? 0)} lost</Tag> {milliseconds(one.rtt_us ?? 0)}
          </>
        )}
      </Named>
    </section>
  );
}

function Named(props: {
  clients: NamedClient[];
  empty: string;
  children: (one: NamedClient) => ComponentChildren;
}) {
  return (
    <List
      class="plain-list"
      rows={props.clients}
      empty={props.empty}
      rowKey={({ client }) => client}
      row={(one) => (
        <>
          <Link to={clientPath(one.client)}>{one.client}</Link>
          <small class="muted">{props.children(one)}</small>
        </>
      )}
    />
  );
}
