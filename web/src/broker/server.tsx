// The server around the broker: budgets, storage, certificates, gateway, listeners.

import { amount, ago, dateTime, plural } from '../lib/format';
import { List } from '../ui/list';
import { FactList, Note, Tag } from '../ui/parts';
import { bytes, certificateUrgency, duration, milliseconds, share, transportName, upstreamName } from './lib';
import { OverviewScreen } from './parts';
import type { Account, Certificate, Cluster, ClusterNode, Overview, Upstream } from './types';

export function ServerPage() {
  return (
    <OverviewScreen>
      {(now) => (
        <>
          <div class="pair">
            <Budgets now={now} />
            <Process now={now} />
          </div>
          {now.server.cluster && <ClusterCard cluster={now.server.cluster} nowMs={now.now_ms} />}
          <Certificates now={now} />
          <Gateway now={now} />
          <Listeners now={now} />
        </>
      )}
    </OverviewScreen>
  );
}

const MEMORY: Record<string, string> = {
  sessions: 'Sessions and subscriptions',
  messages: 'Queued and retained messages',
  output: 'Output to slow clients',
  aliases: 'Topic aliases',
  input: 'Received and not yet processed',
  logins: 'Logins that are not decided',
  connections: 'Connections',
};

function renewal({ is_renewed, renewed_at_reload }: Certificate): string {
  if (is_renewed) return 'by the server';
  return renewed_at_reload ? 'by the server, when it starts or reloads' : 'by you, then reload';
}

const DISK: Record<string, string> = {
  store: 'Sessions and messages',
  outboxes: 'Outboxes of the gateway',
  platform: 'Platform',
  photos: 'Photos, a part of it',
  other: 'Users, log of changes, tickets and the rest',
};

function Budgets({ now }: { now: Overview }) {
  return (
    <section class="card stack" aria-labelledby="budgets-head" data-testid="budgets">
      <h2 id="budgets-head">Budgets</h2>
      <h3>Memory</h3>
      <Gauges accounts={now.memory} names={MEMORY} />
      <p class="muted small-text">Parts of [limits] memory. Above half of one, each user has a fair share.</p>
      <h3>Disk</h3>
      <Gauges
        accounts={now.server.disk.filter(
          ({ used_bytes, limit_bytes }) => used_bytes > 0 || limit_bytes !== undefined,
        )}
        names={DISK}
      />
      <p class="muted small-text">Parts of [limits] disk, and what has no part of it.</p>
    </section>
  );
}

function Gauges({ accounts, names }: { accounts: Account[]; names: Record<string, string> }) {
  return (
    <List
      class="meters"
      rows={accounts}
      rowKey={({ account }) => account}
      row={(one) => <Gauge name={names[one.account] ?? one.account} account={one} />}
    />
  );
}

function Gauge({ name, account: { used_bytes, limit_bytes } }: { name: string; account: Account }) {
  if (limit_bytes === undefined) {
    return (
      <span class="row">
        <span class="grow">{name}</span>
        <small class="muted">{bytes(used_bytes)}</small>
      </span>
    );
  }
  const part = limit_bytes > 0 ? Math.min(1, used_bytes / limit_bytes) : 0;
  return (
    <>
      <span class="row">
        <span class="grow">{name}</span>
        <small class="muted">
          {bytes(used_bytes)} of {bytes(limit_bytes)}
        </small>
      </span>
      <div
        class={part > 0.9 ? 'gauge bad' : part > 0.7 ? 'gauge warn' : 'gauge'}
        role="meter"
        aria-label={name}
        aria-valuenow={Math.round(part * 100)}
        aria-valuemin={0}
        aria-valuemax={100}
      >
        <span style={{ width: `${part * 100}%` }} />
      </div>
    </>
  );
}

function Process({ now }: { now: Overview }) {
  const { disk_free_bytes, resident_bytes, processor_s } = now.server;
  const upMs = Math.max(1, now.now_ms - now.started_ms);
  return (
    <section class="card" aria-labelledby="process-head">
      <h2 id="process-head">Process and storage</h2>
      <FactList
        facts={[
          ['Version', now.version],
          ['Started', `${dateTime(now.started_ms)}, ${duration(upMs)} ago`],
          ['Processor', `${share((processor_s * 1000) / upMs)} of a core since then`],
          ['Memory', resident_bytes === undefined ? null : bytes(resident_bytes)],
          ['Disk', disk_free_bytes === undefined ? null : `${bytes(disk_free_bytes)} free`],
          [
            'Storage',
            now.storage_problem ? (
              <Tag tone="bad">{now.storage_problem}</Tag>
            ) : (
              `works, ${plural(now.storage_backlog, 'operation')} not yet durable`
            ),
          ],
          ['Sessions', amount(now.sessions)],
          ['Subscriptions', amount(now.subscriptions)],
          [
            'Retained',
            `${plural(now.retained_messages, 'message')}, ${bytes(now.retained_bytes)}, with the broker's own under $SYS`,
          ],
        ]}
      />
    </section>
  );
}

function ClusterCard({ cluster, nowMs }: { cluster: Cluster; nowMs: number }) {
  const { nodes, is_connected, lease_ms, log_bytes, log_replicas, append_us, snapshot_ms } = cluster;
  const spare = nodes.filter((node) => node.role === 'standing by').length;
  return (
    <section class="stack" aria-labelledby="cluster-head" data-testid="cluster">
      <h2 id="cluster-head">Cluster</h2>
      {!is_connected && <Note tone="bad">NATS does not answer this node.</Note>}
      {spare === 0 && <Note tone="warn">No other node stands by: if this one dies, nothing serves.</Note>}
      <FactList
        facts={[
          ['This node', `${cluster.node}, serves`],
          ['Lease', `${milliseconds(lease_ms * 1000)} left`],
          [
            'Log',
            `up to record ${amount(cluster.position)}, ${bytes(log_bytes)}, on ${plural(log_replicas, 'server')}`,
          ],
          ['Last record', `took ${milliseconds(append_us)}`],
          ['Snapshot', snapshot_ms === undefined ? null : ago(snapshot_ms, nowMs)],
        ]}
      />
      <List
        caption="Nodes of the cluster, as of a few seconds ago"
        rows={nodes}
        rowKey={(node) => node.name}
        testid="nodes"
        columns={[
          { name: 'Node', cell: (node) => node.name },
          { name: 'State', cell: (node) => <NodeState node={node} /> },
          { name: 'Behind', cell: (node) => behind(node, cluster.position) },
          { name: 'Address', cell: (node) => node.address },
          { name: 'Version', cell: (node) => node.version },
        ]}
      />
    </section>
  );
}

function NodeState({ node }: { node: ClusterNode }) {
  return <Tag tone={node.role === 'gone' ? 'bad' : 'good'}>{node.role}</Tag>;
}

/** The nodes' records are a few seconds old. */
function behind(node: ClusterNode, position: number): string {
  return node.position === undefined ? '' : plural(Math.max(0, position - node.position), 'record');
}

function Certificates({ now }: { now: Overview }) {
  const { certificates } = now.server;
  return (
    <section class="stack" aria-labelledby="certificates-head">
      <h2 id="certificates-head">Certificates</h2>
      <List
        caption="Certificates and their ends"
        rows={certificates}
        empty="No listener presents a certificate."
        rowKey={(one) => one.name}
        testid="certificates"
        columns={[
          { name: 'For', cell: (one) => one.name },
          { name: 'Expires', cell: (one) => dateTime(one.expires_ms) },
          {
            name: 'Left',
            cell: (one) => {
              const left = one.expires_ms - now.now_ms;
              const tone = certificateUrgency(one, now.now_ms);
              return <Tag tone={tone}>{left <= 0 ? 'expired' : duration(left)}</Tag>;
            },
          },
          { name: 'Renewal', cell: (one) => renewal(one) },
        ]}
      />
    </section>
  );
}

function Gateway({ now }: { now: Overview }) {
  const { upstreams } = now.server;
  return (
    <section class="stack" aria-labelledby="gateway-head" data-testid="gateway">
      <h2 id="gateway-head">Gateway</h2>
      <List
        class="pair"
        rows={upstreams}
        empty={{
          icon: 'export',
          title: 'This broker forwards to no other',
          hint: 'A section [upstream] in the configuration makes it a gateway.',
        }}
        rowKey={(one) => one.name ?? ''}
        row={(one) => <UpstreamCard upstream={one} nowMs={now.now_ms} />}
      />
    </section>
  );
}

function UpstreamCard({ upstream, nowMs }: { upstream: Upstream; nowMs: number }) {
  const { transport, oldest_ms, rtt_us, problem, down_since_ms, down_reason } = upstream;
  const since = down_since_ms === undefined ? null : `since ${dateTime(down_since_ms)}: ${down_reason}`;
  return (
    <section class="card" aria-label={upstreamName(upstream)}>
      <div class="row">
        <h3 class="grow">{upstreamName(upstream)}</h3>
        <Tag tone={transport ? 'good' : 'warn'}>
          {transport ? `connected, ${transportName(transport)}` : 'not connected'}
        </Tag>
      </div>
      {problem && <Note tone="bad">{problem}</Note>}
      <FactList
        facts={[
          ['Not connected', since],
          ['Outbox', `${plural(upstream.queued_messages, 'message')}, ${bytes(upstream.queued_bytes)}`],
          ['Oldest', oldest_ms === undefined ? null : ago(oldest_ms, nowMs)],
          ['Acknowledged', amount(upstream.sent)],
          ['Received', amount(upstream.received)],
          ['Dropped', amount(upstream.dropped)],
          ['Round-trip time', rtt_us === undefined ? null : milliseconds(rtt_us)],
          ['Address changes', amount(upstream.migrations)],
          ['0-RTT', plural(upstream.early_data, 'connection')],
        ]}
      />
    </section>
  );
}

function Listeners({ now }: { now: Overview }) {
  return (
    <section class="stack" aria-labelledby="listeners-head">
      <h2 id="listeners-head">Listeners</h2>
      <List
        caption="Listeners"
        rows={now.server.listeners}
        rowKey={(one) => `${one.name} ${one.address}`}
        columns={[
          { name: 'Listener', cell: (one) => <code>{one.name}</code> },
          { name: 'Address', cell: (one) => one.address },
        ]}
      />
    </section>
  );
}
