// The reader's work lists, and one of them meter by meter.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { refresh } from '../data/sync';
import { amount, ago, date, distance, meterNumber, meterTitle, plural } from '../lib/format';
import { metresBetween } from '../lib/geo';
import { doneOf, inOrder, seenTasks, type SeenTask } from '../lib/work';
import * as state from '../state';
import type { Meter, Place, WorkList } from '../types';
import { Icon, mediumIcon } from '../ui/icons';
import { List as Rows } from '../ui/list';
import { Choice, Empty, Page, Progress, RefreshButton, Tag } from '../ui/parts';
import { Link, navigate } from '../ui/router';

export function Lists() {
  const lists = state.lists.value;
  const done = lists.filter((list) => list.state === 'done');
  const loaded = state.loadedAt.value;
  const cards = (shown: WorkList[], testid?: string) => (
    <Rows
      class="cards"
      {...(testid && { testid })}
      rows={shown}
      rowKey={({ id }) => id}
      row={(list) => <ListCard list={list} />}
    />
  );
  return (
    <Page actions={<RefreshWork />}>
      {loaded && <p class="muted small-text">Updated {ago(loaded, state.clock.value)}</p>}
      {lists.length === 0 && (
        <Empty icon="lists" title={loaded ? 'No work lists' : 'Nothing downloaded yet'}>
          {loaded
            ? 'Lists that are assigned to you appear here.'
            : 'Connect once to download meters and lists; after that, they are available offline.'}
        </Empty>
      )}
      {cards(
        lists.filter((list) => list.state === 'open'),
        'work-lists',
      )}
      {done.length > 0 && (
        <details>
          <summary>{plural(done.length, 'finished list')}</summary>
          {cards(done)}
        </details>
      )}
    </Page>
  );
}

export function RefreshWork() {
  return <RefreshButton busy={state.refreshing.value} onClick={() => void refresh(true)} />;
}

function ListCard({ list }: { list: WorkList }) {
  const { done, total } = doneOf(list, state.mine.value);
  const isLate = list.state === 'open' && list.due !== null && Date.parse(list.due) < state.clock.value;
  return (
    <Link to={`/lists/${encodeURIComponent(list.id)}`} class="card list-card">
      <div class="row">
        <strong class="grow">{list.name}</strong>
        {list.due && (
          <Tag tone={isLate ? 'bad' : 'neutral'}>
            {isLate ? 'overdue ' : 'due '}
            {date(list.due)}
          </Tag>
        )}
      </div>
      <Progress done={done} total={total} label={`${list.name}: ${done} of ${total} done`} />
      <div class="row muted small-text">
        <span class="grow">
          {amount(done)} of {plural(total, 'meter')}
        </span>
        <span>{list.assignee ?? 'not assigned'}</span>
      </div>
    </Link>
  );
}

const PAGE = 100;

export function List({ id }: { id: string }) {
  const [which, setWhich] = useState<'open' | 'all'>('open');
  const list = state.lists.value.find((one) => one.id === id);
  if (!list) {
    return (
      <Page back="/lists">
        <Empty icon="lists" title="This list is not on this device" />
      </Page>
    );
  }
  const tasks = seenTasks(list, state.mine.value);
  const { done, total } = doneOf(list, state.mine.value);
  const here = state.position.value?.place ?? null;
  const wanted = inOrder(tasks, here).filter((task) => which === 'all' || task.state === 'open');
  return (
    <Page title={list.name} back="/lists">
      <div class="card summary">
        <Progress done={done} total={total} label={`${done} of ${total} done`} />
        <div class="row">
          <span class="grow" data-testid="list-progress">
            <strong>{amount(done)}</strong> of {plural(total, 'meter')} done
          </span>
          <button type="button" class="small" onClick={() => navigate(`/map?list=${encodeURIComponent(id)}`)}>
            <Icon name="map" size={18} /> Map
          </button>
          <button
            type="button"
            class="small"
            onClick={() => navigate(`/drive?list=${encodeURIComponent(id)}`)}
          >
            <Icon name="drive" size={18} /> Drive
          </button>
        </div>
      </div>
      <Choice
        label="Which meters"
        value={which}
        onChange={setWhich}
        options={{ open: `To do (${total - done})`, all: `All (${total})` }}
      />
      <Rows
        key={which}
        class="rows"
        testid="tasks"
        rows={wanted}
        empty={{ icon: 'check', title: 'All done here' }}
        page={PAGE}
        rowKey={({ meter }) => meter.id}
        row={(task) => <TaskRow task={task} list={id} />}
      />
    </Page>
  );
}

function TaskRow({ task, list }: { task: SeenTask; list: string }) {
  const { meter } = task;
  const here = state.position.value?.place;
  return (
    <MeterLink
      meter={meter}
      list={list}
      about={[meterNumber(meter), task.state === 'open' && far(meter, here)]}
    >
      {task.state !== 'open' && <TaskTag task={task} />}
      <Icon name="next" size={18} />
    </MeterLink>
  );
}

/** How far away a meter is, if both places are known. */
export function far(meter: Meter, here: Place | null | undefined): string | null {
  return here && meter.place ? distance(metresBetween(here, meter.place)) : null;
}

/** A meter in a list of them, with what is known of it here and now. */
export function MeterLink(props: {
  meter: Meter;
  /** The work list that it is read for. */
  list: string | null;
  about: (string | null | false)[];
  children?: ComponentChildren;
}) {
  const { meter, list, about, children } = props;
  const inList = list ? `?list=${encodeURIComponent(list)}` : '';
  return (
    <Link to={`/meters/${encodeURIComponent(meter.id)}${inList}`} class="row-link">
      <span class={`medium ${meter.medium}`}>
        <Icon name={mediumIcon(meter.medium)} />
      </span>
      <span class="grow">
        <strong>{meterTitle(meter)}</strong>
        <small class="muted">{about.filter(Boolean).join(' · ')}</small>
      </span>
      {children}
    </Link>
  );
}

function TaskTag({ task }: { task: SeenTask }) {
  if (task.state === 'unreachable') return <Tag tone="warn">no access</Tag>;
  if ((task.reading?.conflict_with?.length ?? 0) > 0) return <Tag tone="bad">conflict</Tag>;
  return task.pending ? <Tag tone="info">read, to send</Tag> : <Tag tone="good">read</Tag>;
}
