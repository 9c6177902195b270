// Work lists for the office: who has which, and new ones.

import { useState } from 'preact/hooks';
import { attempt } from '../data/attempt';
import { ask, useAsked } from '../data/office';
import { refresh } from '../data/sync';
import { date, plural } from '../lib/format';
import { fit, wordsOf } from '../lib/search';
import * as state from '../state';
import type { Meter, WorkList } from '../types';
import { Form } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { Page, Progress, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { TypedInput } from '../ui/typed-input';

interface Member {
  name: string;
  display_name: string | null;
  role: string;
}

const ABOUT = 'A list names the meters to read, the reader and the due date.';

export function OfficeLists() {
  const [isAdding, setAdding] = useState(false);
  const lists = state.lists.value;
  const people = usePeople();
  const change = async (list: WorkList, changes: Partial<WorkList>) => {
    const send = async () => {
      await ask(`/work_list/${encodeURIComponent(list.id)}`, { method: 'PATCH', json: changes });
      await refresh();
    };
    await attempt(send, 'Changed.');
  };
  const add = state.mayManage.value && !isAdding && (
    <button type="button" class="primary" onClick={() => setAdding(true)} data-testid="new-list">
      <Icon name="plus" /> New list
    </button>
  );
  return (
    <Page wide actions={add}>
      {isAdding && <NewList people={people} onClose={() => setAdding(false)} />}
      <datalist id="people">
        {people.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      <List
        caption="Work lists"
        testid="office-lists"
        rows={lists}
        empty={
          isAdding
            ? null
            : {
                icon: 'lists',
                title: 'No work lists yet',
                hint: `${ABOUT}${add ? ' Begin with New list.' : ''}`,
              }
        }
        rowKey={(list) => list.id}
        columns={[
          {
            name: 'List',
            cell: (list) => <Link to={`/lists/${encodeURIComponent(list.id)}`}>{list.name}</Link>,
          },
          {
            name: 'Reader',
            cell: (list) =>
              state.mayManage.value ? (
                <TypedInput
                  class="small-input"
                  list="people"
                  aria-label={`Reader of ${list.name}`}
                  placeholder="nobody"
                  value={list.assignee ?? ''}
                  onDone={(typed) => change(list, { assignee: typed.trim() || null })}
                />
              ) : (
                (list.assignee ?? 'nobody')
              ),
          },
          { name: 'Due', cell: (list) => (list.due ? date(list.due) : '–') },
          {
            name: 'Progress',
            cell: (list) => (
              <div class="progress-cell">
                <Progress
                  done={list.done}
                  total={list.total}
                  label={`${list.name}: ${list.done} of ${list.total}`}
                />
                <small>
                  {list.done} of {list.total}
                </small>
              </div>
            ),
          },
          {
            name: 'State',
            cell: (list) =>
              list.state === 'open' ? <Tag tone="info">open</Tag> : <Tag tone="good">done</Tag>,
          },
          {
            name: 'Change',
            cell: (list) =>
              state.mayManage.value && (
                <button
                  type="button"
                  class="small"
                  onClick={() => void change(list, { state: list.state === 'open' ? 'done' : 'open' })}
                >
                  {list.state === 'open' ? 'Close' : 'Open again'}
                </button>
              ),
          },
        ]}
      />
    </Page>
  );
}

/** Members who can read meters; only admins may ask for them, others get the names in use. */
function usePeople(): string[] {
  const { data } = useAsked<{ items: Member[] }>('/user');
  const known = state.lists.value.flatMap((list) => (list.assignee ? [list.assignee] : []));
  const members = (data?.items ?? []).filter((one) => one.role === 'reader').map((one) => one.name);
  return [...new Set([...members, ...known])].sort();
}

type Kind = 'all' | 'radio' | 'manual' | 'missed';

function matches(meter: Meter, kind: Kind, words: string[]): boolean {
  if (kind === 'radio' && !meter.radio) return false;
  if (kind === 'manual' && meter.radio) return false;
  if (kind === 'missed' && meter.state !== 'missed') return false;
  return fit(meter, words) !== null;
}

const KINDS = { all: 'All', radio: 'Radio', manual: 'By hand', missed: 'Missed' };

function chosenOf(text: string, kind: string): Meter[] {
  const words = wordsOf(text);
  return [...state.meters.value.values()].filter((meter) => matches(meter, kind as Kind, words));
}

function NewList({ people, onClose }: { people: string[]; onClose: () => void }) {
  const [only = ''] = people.length === 1 ? people : [];
  return (
    <section class="card" aria-labelledby="new-list-head">
      <h2 id="new-list-head">New work list</h2>
      <Form
        label="New work list"
        id="list"
        fields={[
          { name: 'name', label: 'Name', required: true, input: { maxLength: 120 } },
          { name: 'assignee', label: 'Reader', input: { list: 'people', placeholder: 'anyone' } },
          { name: 'due', label: 'Due', kind: 'date' },
          {
            name: 'filter',
            label: 'Meters whose street or number contains',
            kind: 'search',
            api: 'meters',
            input: { placeholder: 'all' },
            check: (text, { kind }) =>
              chosenOf(text, kind).length === 0 ? 'No meter is like this: choose others.' : null,
          },
          { name: 'kind', label: 'Kind of meters', kind: 'choice', options: KINDS, isPlaced: true },
        ]}
        initial={{ assignee: only }}
        submit="Create"
        onCancel={onClose}
        send={async ({ name, assignee, due, filter, kind }) => {
          const meters = chosenOf(filter, kind).map((meter) => meter.id);
          const end = due ? new Date(`${due}T23:59:59`).toISOString() : null;
          const json = { name, assignee: assignee || null, due: end, meters };
          await ask('/work_list', { method: 'POST', json });
          await refresh();
          state.say(`${name} has ${plural(meters.length, 'meter')}.`, 'good');
          onClose();
        }}
      >
        {({ values, field }) => (
          <>
            {field('kind')}
            <p aria-live="polite">{plural(chosenOf(values.filter, values.kind).length, 'meter')}</p>
          </>
        )}
      </Form>
    </section>
  );
}
