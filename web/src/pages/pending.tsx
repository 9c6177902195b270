// What waits on this device, what the server refused, and conflicts to decide.

import { useState } from 'preact/hooks';
import { ApiError, call } from '../data/api';
import { discard, retry, type Conflict, type Item } from '../data/outbox';
import { database, flush, showOutbox } from '../data/sync';
import { amount, ago, dateTime, meterTitle, plural, quantity } from '../lib/format';
import * as state from '../state';
import type { Reading } from '../types';
import { Icon, type IconName } from '../ui/icons';
import { Dialog, Empty, Note, Page, Tag } from '../ui/parts';
import { sendNow } from '../ui/shell';

const MOST_SHOWN = 200;

export function Pending() {
  const items = state.mine.value;
  const others = state.outbox.value.length - items.length;
  const refused = items.filter((one) => one.state === 'refused');
  const people = items.filter(
    (one) => one.state === 'waiting' && one.kind !== 'telemetry' && one.kind !== 'frame',
  );
  const { frames, telemetry } = state.counts.value;
  const isEmpty = items.length === 0 && state.conflicts.value.length === 0;
  return (
    <Page title="Pending">
      <SendCard />
      {others > 0 && (
        <Note tone="warn">
          {plural(others, 'item')} of another user on this device will be sent when that user logs in.
        </Note>
      )}
      {state.conflicts.value.map((conflict) => (
        <ConflictCard key={conflict.id} conflict={conflict} />
      ))}
      {refused.map((one) => (
        <RefusedCard key={one.id} one={one} />
      ))}
      {isEmpty && (
        <Empty icon="check" title="Everything is sent">
          Readings, photos and frames wait here while there is no connection.
        </Empty>
      )}
      <ul class="rows" data-testid="pending-items">
        {people
          .slice(-MOST_SHOWN)
          .reverse()
          .map((one) => (
            <PendingRow key={one.id} one={one} />
          ))}
        {frames > 0 && <CountRow icon="radio" text={plural(frames, 'radio frame')} />}
        {telemetry > 0 && <CountRow icon="here" text={`${plural(telemetry, 'position')} of your route`} />}
      </ul>
    </Page>
  );
}

function SendCard() {
  const counts = state.counts.value;
  const problem = state.sendProblem.value;
  if (counts.total === 0) return null;
  return (
    <section class="card send-card">
      <div class="big-number" data-testid="pending-count">
        {amount(counts.total)}
      </div>
      <p>
        {counts.total === 1 ? 'item waits' : 'items wait'} to be sent.{' '}
        {counts.total === 1 ? 'It is' : 'They are'} safe on this device.
      </p>
      {problem && (
        <p class="muted small-text" role="status">
          Last attempt: {problem} The app will try again.
        </p>
      )}
      <button
        type="button"
        class="primary"
        disabled={state.sending.value}
        onClick={sendNow}
        data-testid="send-now"
      >
        <Icon name="pending" /> {state.sending.value ? 'Sending …' : 'Send now'}
      </button>
    </section>
  );
}

function CountRow({ icon, text }: { icon: IconName; text: string }) {
  return (
    <li class="row-link">
      <Icon name={icon} />
      <span class="grow">{text}</span>
    </li>
  );
}

function meterName(id: string): string {
  const meter = state.meters.value.get(id);
  return meter ? meterTitle(meter) : id;
}

function describe(one: Item): { icon: IconName; title: string; text: string } {
  switch (one.kind) {
    case 'reading': {
      const { meter, value, unit, photo } = one.reading;
      return { icon: photo ? 'camera' : 'check', title: meterName(meter), text: quantity(value, unit) };
    }
    case 'photo':
      return { icon: 'camera', title: 'Photo', text: `${Math.ceil(one.bytes / 1024)} kB` };
    case 'task':
      return { icon: 'warn', title: meterName(one.meter), text: 'no access' };
    case 'frame':
      return { icon: 'radio', title: 'Radio frame', text: one.meter ?? '' };
    case 'telemetry':
      return { icon: 'here', title: 'Position', text: '' };
  }
}

function PendingRow({ one }: { one: Item }) {
  const { icon, title, text } = describe(one);
  return (
    <li class="row-link">
      <Icon name={icon} />
      <span class="grow">
        <strong>{title}</strong>
        <small class="muted">
          {text} · {ago(one.created, state.clock.value)}
        </small>
      </span>
      <Tag tone="info">to send</Tag>
    </li>
  );
}

function RefusedCard({ one }: { one: Item }) {
  const [asking, setAsking] = useState(false);
  const { title, text } = describe(one);
  const again = async () => {
    await retry(await database(), [one.id]);
    await showOutbox();
    await flush();
  };
  const throwAway = async () => {
    await discard(await database(), [...state.outbox.value], one.id);
    await showOutbox();
  };
  return (
    <section class="card problem" aria-label={`Refused: ${title}`}>
      <div class="row">
        <strong class="grow">{title}</strong>
        <Tag tone="bad">refused</Tag>
      </div>
      <p>
        {text} · {dateTime(one.created)}
      </p>
      <Note tone="bad">{one.problem}</Note>
      <div class="row end">
        <button type="button" class="quiet" onClick={() => setAsking(true)}>
          Discard
        </button>
        <button type="button" onClick={() => void again()}>
          Try again
        </button>
      </div>
      {asking && (
        <Dialog title="Discard this?" onClose={() => setAsking(false)}>
          <p>
            {title}, {text}. This cannot be undone.
          </p>
          <div class="dialog-actions">
            <button type="button" autofocus onClick={() => setAsking(false)}>
              Keep it
            </button>
            <button type="button" class="danger" onClick={() => void throwAway()}>
              Discard
            </button>
          </div>
        </Dialog>
      )}
    </section>
  );
}

/** Both readings are stored at the server; the card shows them side by side until one is chosen. */
function ConflictCard({ conflict }: { conflict: Conflict }) {
  const [other, setOther] = useState<Reading[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const token = state.session.value?.token ?? null;
  const path = `/${encodeURIComponent(conflict.twin)}/reading`;

  // The server lets the office decide, and nobody else.
  const isMine = state.mayManage.value;

  const guarded = async (action: () => Promise<void>) => {
    setProblem(null);
    try {
      await action();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
    }
  };
  const compare = () =>
    guarded(async () => {
      const { data } = await call<Reading>(`${path}/${conflict.id}`, { token });
      const ids = data.conflict_with ?? [];
      const all = await Promise.all(
        ids.map((id) => call<Reading>(`${path}/${encodeURIComponent(id)}`, { token })),
      );
      setOther(all.map((answer) => answer.data));
    });
  const choose = (id: string) =>
    guarded(async () => {
      await call(`${path}/${encodeURIComponent(id)}/resolve`, {
        method: 'POST',
        token,
        json: { keep: true },
      });
      await hide();
      state.say('Conflict resolved.', 'good');
    });
  const hide = async () => {
    await (await database()).delete('conflicts', conflict.id);
    await showOutbox();
  };

  return (
    <section
      class="card problem"
      aria-label={`Conflict: ${meterName(conflict.reading.meter)}`}
      data-testid="conflict"
    >
      <div class="row">
        <strong class="grow">{meterName(conflict.reading.meter)}</strong>
        <Tag tone="bad">conflict</Tag>
      </div>
      <p>
        {conflict.detail ??
          'Somebody else read this meter too. Both readings are kept until the office decides.'}
      </p>
      <ul class="versus">
        <Version
          title="Yours"
          reading={conflict.reading}
          onKeep={other && isMine ? () => void choose(conflict.id) : undefined}
        />
        {other?.map((reading) => (
          <Version
            key={reading.id}
            title={reading.reader ?? reading.device ?? 'Other'}
            reading={reading}
            onKeep={isMine ? () => void choose(reading.id) : undefined}
          />
        ))}
      </ul>
      {problem && (
        <Note tone="bad" role="alert">
          {problem}
        </Note>
      )}
      <div class="row end">
        <button type="button" class="quiet" onClick={() => void hide()}>
          {isMine ? 'Decide later' : 'Leave it to the office'}
        </button>
        {!other && (
          <button type="button" onClick={() => void compare()}>
            Compare
          </button>
        )}
      </div>
    </section>
  );
}

function Version({
  title,
  reading,
  onKeep,
}: {
  title: string;
  reading: Reading;
  onKeep: (() => void) | undefined;
}) {
  return (
    <li>
      <small class="muted">{title}</small>
      <strong>{quantity(reading.value, reading.unit)}</strong>
      <small class="muted">
        {dateTime(reading.at)} · {reading.method}
      </small>
      {onKeep && (
        <button type="button" class="small" onClick={onKeep}>
          Keep this one
        </button>
      )}
    </li>
  );
}
