// The readers' devices and vans: where they are, how they are, and commands to them.

import { useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { ask, useAsked, usePages } from '../data/office';
import { ago } from '../lib/format';
import * as state from '../state';
import type { Command, Instance, Page as Items } from '../types';
import { Icon } from '../ui/icons';
import { Empty, Field, Note, Page, Tag, type Tone } from '../ui/parts';

const MOST = 200;
const SHOWN = 4;

export function Devices() {
  const { data, problem, again } = usePages<Instance>('/instance', MOST);
  return (
    <Page
      title="Devices"
      wide
      actions={
        <button type="button" class="icon-button" aria-label="Refresh" onClick={again}>
          <Icon name="refresh" />
        </button>
      }
    >
      {problem && <Note tone="warn">{problem}</Note>}
      {data?.length === 0 && <Empty icon="devices" title="No device has logged in yet" />}
      <ul class="device-grid" data-testid="devices">
        {data?.map((instance) => (
          <li key={instance.device} class="card">
            <Device instance={instance} />
          </li>
        ))}
      </ul>
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
  const [text, setText] = useState('');
  const latest = instance.telemetry;
  const order = async (command: string, args: object) => {
    try {
      await ask(`${path}/command/${command}`, { method: 'POST', json: { args } });
      setText('');
      commands.again();
      state.say('The command waits for the device.', 'good');
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.say(error.message, 'bad');
    }
  };
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
            <button type="button" class="small" onClick={() => void order('refresh', {})}>
              Fetch work
            </button>
            <button type="button" class="small" onClick={() => void order('send', {})}>
              Send now
            </button>
          </div>
          <form
            class="row"
            onSubmit={(event) => {
              event.preventDefault();
              void order('message', { text });
            }}
          >
            <div class="grow">
              <Field label="Message to the reader" id={`message-${instance.device}`}>
                <input
                  id={`message-${instance.device}`}
                  required
                  maxLength={300}
                  value={text}
                  onInput={(event) => setText(event.currentTarget.value)}
                />
              </Field>
            </div>
            <button type="submit" class="small">
              Send
            </button>
          </form>
        </>
      )}
      <ul class="commands">
        {commands.data?.items
          .slice(-SHOWN)
          .reverse()
          .map((command) => (
            <li key={command.id} class="row">
              <span class="grow">{NAMES[command.command] ?? command.command}</span>
              <Tag tone={TONES[command.state]}>{command.state}</Tag>
            </li>
          ))}
      </ul>
    </>
  );
}
