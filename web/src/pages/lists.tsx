// The reader's work lists, and one of them meter by meter.

import { useState } from 'preact/hooks';
import { refresh } from '../data/sync';
import { amount, ago, date, distance, meterNumber, plural } from '../lib/format';
import { metresBetween } from '../lib/geo';
import { doneOf, inOrder, seenTasks, type SeenTask } from '../lib/work';
import * as state from '../state';
import type { WorkList } from '../types';
import { Icon, mediumIcon } from '../ui/icons';
import { Choice, Empty, Page, Progress, Tag } from '../ui/parts';
import { Link, navigate } from '../ui/router';

export function Lists() {
  const lists = state.lists.value;
  const open = lists.filter((list) => list.state === 'open');
  const done = lists.filter((list) => list.state === 'done');
  const loaded = state.loadedAt.value;
  return (
    <Page title="Work lists" actions={<RefreshButton />}>
      {loaded && <p class="muted small-text">Updated {ago(loaded, state.clock.value)}</p>}
      {lists.length === 0 && (
        <Empty icon="lists" title={loaded ? 'No work lists' : 'Nothing downloaded yet'}>
          {loaded
            ? 'Lists that are assigned to you appear here.'
            : 'Connect once to download meters and lists; after that, they are available offline.'}
        </Empty>
      )}
      <ul class="cards" data-testid="work-lists">
        {open.map((list) => (
          <ListCard key={list.id} list={list} />
        ))}
      </ul>
      {done.length > 0 && (
        <details>
          <summary>{plural(done.length, 'finished list')}</summary>
          <ul class="cards">
            {done.map((list) => (
              <ListCard key={list.id} list={list} />
            ))}
          </ul>
        </details>
      )}
    </Page>
  );
}

export function RefreshButton() {
  const busy = state.refreshing.value;
  return (
    <button
      type="button"
      class="icon-button"
      aria-label="Refresh"
      disabled={busy}
      onClick={() => void refresh(true)}
    >
      <span class={busy ? 'spin' : ''}>
        <Icon name="refresh" />
      </span>
    </button>
  );
}

function ListCard({ list }: { list: WorkList }) {
  const { done, total } = doneOf(list, state.mine.value);
  const isLate = list.state === 'open' && list.due !== null && Date.parse(list.due) < state.clock.value;
  return (
    <li>
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
    </li>
  );
}

const MOST_SHOWN = 100;

export function List({ id }: { id: string }) {
  const [which, setWhich] = useState<'open' | 'all'>('open');
  const [shown, setShown] = useState(MOST_SHOWN);
  const list = state.lists.value.find((one) => one.id === id);
  if (!list) {
    return (
      <Page title="Work list" back="/lists">
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
        options={[
          ['open', `To do (${total - done})`],
          ['all', `All (${total})`],
        ]}
      />
      {wanted.length === 0 && <Empty icon="check" title="All done here" />}
      <ul class="rows" data-testid="tasks">
        {wanted.slice(0, shown).map((task) => (
          <TaskRow key={task.meter.id} task={task} list={id} />
        ))}
      </ul>
      {wanted.length > shown && (
        <button type="button" onClick={() => setShown(shown + MOST_SHOWN)}>
          Show {Math.min(MOST_SHOWN, wanted.length - shown)} more
        </button>
      )}
    </Page>
  );
}

function TaskRow({ task, list }: { task: SeenTask; list: string }) {
  const { meter } = task;
  const here = state.position.value?.place;
  return (
    <li>
      <Link to={`/meters/${encodeURIComponent(meter.id)}?list=${encodeURIComponent(list)}`} class="row-link">
        <span class={`medium ${meter.medium}`}>
          <Icon name={mediumIcon(meter.medium)} />
        </span>
        <span class="grow">
          <strong>{meter.street ?? meterNumber(meter)}</strong>
          <small class="muted">
            {meterNumber(meter)}
            {here &&
              meter.place &&
              task.state === 'open' &&
              ` · ${distance(metresBetween(here, meter.place))}`}
          </small>
        </span>
        {task.state !== 'open' && <TaskTag task={task} />}
        <Icon name="next" size={18} />
      </Link>
    </li>
  );
}

function TaskTag({ task }: { task: SeenTask }) {
  if (task.state === 'unreachable') return <Tag tone="warn">no access</Tag>;
  if ((task.reading?.conflict_with?.length ?? 0) > 0) return <Tag tone="bad">conflict</Tag>;
  return task.pending ? <Tag tone="info">read, to send</Tag> : <Tag tone="good">read</Tag>;
}
