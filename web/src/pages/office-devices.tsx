// The readers' devices and vans: where they are, how they are, and commands to them.

import { attempt } from '../data/attempt';
import { ask, useAsked, usePages } from '../data/office';
import { ago } from '../lib/format';
import * as state from '../state';
import type { Command, Instance, Page as Items } from '../types';
import { Form } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { Page, RefreshButton, Tag, type Tone } from '../ui/parts';

const MOST = 200;
const SHOWN = 4;

export function Devices() {
  const { data, problem, again } = usePages<Instance>('/instance', MOST);
  return (
    <Page wide actions={<RefreshButton onClick={again} />}>
      <List
        class="device-grid"
        testid="devices"
        rows={data}
        problem={problem}
        again={again}
        empty={{
          icon: 'devices',
          title: 'No device has logged in yet',
          hint: 'Readers’ phones appear here when they open the app and log in.',
        }}
        rowKey={({ device }) => device}
        rowClass="card"
        row={(instance) => <Device instance={instance} />}
      />
    </Page>
  );
}

const TONES: Record<Command['state'], Tone> = {
  pending: 'info',
  accepted: 'info',
  done: 'good',
  failed: 'bad',
};
const NAMES: Record<string, string> = { refresh: 'Fetch work', send: 'Send now', message: 'Message' };

function Device({ instance }: { instance: Instance }) {
  const path = `/instance/${encodeURIComponent(instance.device)}`;
  const commands = useAsked<Items<Command>>(`${path}/command`);
  const latest = instance.telemetry;
  const order = async (command: string, args: object) => {
    await ask(`${path}/command/${command}`, { method: 'POST', json: { args } });
    commands.again();
  };
  const waits = 'The command waits for the device.';
  const at = (command: string) => () => void attempt(() => order(command, {}), waits);
  const seen = state.vans.value.get(instance.device)?.at ?? latest?.at ?? instance.seen_at;
  return (
    <>
      <div class="row">
        <Icon name={instance.kind === 'van' ? 'drive' : 'devices'} size={26} />
        <span class="grow">
          <strong>{instance.name ?? instance.device}</strong>
          <br />
          <small class="muted">
            {instance.kind} · {seen ? `seen ${ago(seen, state.clock.value)}` : 'not seen yet'}
          </small>
        </span>
        {latest?.battery_percent !== null && latest?.battery_percent !== undefined && (
          <Tag tone={latest.battery_percent < 20 ? 'bad' : 'neutral'}>
            {latest.battery_percent} %{latest.charging ? ', charging' : ''}
          </Tag>
        )}
      </div>
      {state.mayManage.value && (
        <>
          <div class="row">
            <button type="button" class="small" onClick={at('refresh')}>
              Fetch work
            </button>
            <button type="button" class="small" onClick={at('send')}>
              Send now
            </button>
          </div>
          <Form
            class="row"
            id={`message-${instance.device}`}
            fields={[
              { name: 'text', label: 'Message to the reader', required: true, input: { maxLength: 300 } },
            ]}
            submit="Send"
            tone=""
            done={waits}
            send={({ text }) => order('message', { text })}
          />
        </>
      )}
      <List
        class="commands"
        rows={commands.data?.items.slice(-SHOWN).reverse()}
        problem={commands.problem}
        rowKey={({ id }) => id}
        rowClass="row"
        row={({ command, state: done }) => (
          <>
            <span class="grow">{NAMES[command] ?? command}</span>
            <Tag tone={TONES[done]}>{done}</Tag>
          </>
        )}
      />
    </>
  );
}
