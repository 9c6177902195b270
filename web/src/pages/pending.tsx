// What waits on this device, what the server refused, and conflicts to decide.

import { useState } from 'preact/hooks';
import { ApiError, call } from '../data/api';
import { discard, retry, type Conflict, type Item } from '../data/outbox';
import { database, flush, showOutbox } from '../data/sync';
import { amount, ago, dateTime, plural, quantity } from '../lib/format';
import * as state from '../state';
import type { Reading } from '../types';
import { Careful } from '../ui/form';
import { Icon, type IconName } from '../ui/icons';
import { List } from '../ui/list';
import { Empty, Note, Page, Tag } from '../ui/parts';
import { sendNow } from '../ui/shell';
import { nameOf } from './reading-parts';

const PAGE = 200;

export function Pending() {
  const items = state.mine.value;
  const others = state.outbox.value.length - items.length;
  const refused = items.filter((one) => one.state === 'refused');
  const people = items.filter(
    (one) => one.state === 'waiting' && one.kind !== 'telemetry' && one.kind !== 'frame',
  );
  const { frames, telemetry } = state.counts.value;
  const rows = [
    ...people.reverse().map((one) => {
      const { icon, title, text } = describe(one);
      const about = `${text} · ${ago(one.created, state.clock.value)}`;
      return { key: one.id, icon, title, text: about, isToSend: true };
    }),
    ...(frames > 0 ? [countRow('radio', plural(frames, 'radio frame'))] : []),
    ...(telemetry > 0 ? [countRow('here', `${plural(telemetry, 'position')} of your route`)] : []),
  ];
  const isEmpty = items.length === 0 && state.conflicts.value.length === 0;
  return (
    <Page>
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
      <List
        class="rows"
        testid="pending-items"
        rows={rows}
        page={PAGE}
        rowKey={({ key }) => key}
        rowClass="row-link"
        row={({ icon, title, text, isToSend }) => (
          <>
            <Icon name={icon} />
            <span class="grow">
              {isToSend ? <strong>{title}</strong> : title}
              {text && <small class="muted">{text}</small>}
            </span>
            {isToSend && <Tag tone="info">to send</Tag>}
          </>
        )}
      />
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

function countRow(icon: IconName, title: string) {
  return { key: icon, icon, title, text: '', isToSend: false };
}

function describe(one: Item): { icon: IconName; title: string; text: string } {
  switch (one.kind) {
    case 'reading': {
      const { meter, value, unit, photo } = one.reading;
      return { icon: photo ? 'camera' : 'check', title: nameOf(meter), text: quantity(value, unit) };
    }
    case 'photo':
      return { icon: 'camera', title: 'Photo', text: `${Math.ceil(one.bytes / 1024)} kB` };
    case 'task':
      return { icon: 'warn', title: nameOf(one.meter), text: 'no access' };
    case 'frame':
      return { icon: 'radio', title: 'Radio frame', text: one.meter ?? '' };
    case 'telemetry':
      return { icon: 'here', title: 'Position', text: '' };
  }
}

function RefusedCard({ one }: { one: Item }) {
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
        <Careful
          label="Discard"
          class="quiet"
          question="Discard this?"
          yes="Discard"
          cancel="Keep it"
          onYes={throwAway}
        >
          <p>
            {title}, {text}. This cannot be undone.
          </p>
        </Careful>
        <button type="button" onClick={() => void again()}>
          Try again
        </button>
      </div>
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
      aria-label={`Conflict: ${nameOf(conflict.reading.meter)}`}
      data-testid="conflict"
    >
      <div class="row">
        <strong class="grow">{nameOf(conflict.reading.meter)}</strong>
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

function Version(props: { title: string; reading: Reading; onKeep: (() => void) | undefined }) {
  const { title, reading, onKeep } = props;
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
