// Work lists for the office: who has which, and new ones.

import { useMemo, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { ask, useAsked } from '../data/office';
import { refresh } from '../data/sync';
import { date, plural } from '../lib/format';
import { fit, wordsOf } from '../lib/search';
import * as state from '../state';
import type { Meter, WorkList } from '../types';
import { Icon } from '../ui/icons';
import { Choice, Empty, Field, Note, Page, Progress, Table, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { TypedInput } from '../ui/typed-input';

interface Member {
  name: string;
  display_name: string | null;
  role: string;
}

export function OfficeLists() {
  const [isAdding, setAdding] = useState(false);
  const lists = state.lists.value;
  const people = usePeople();
  const change = async (list: WorkList, changes: Partial<WorkList>) => {
    try {
      await ask(`/work_list/${encodeURIComponent(list.id)}`, { method: 'PATCH', json: changes });
      await refresh();
      state.say('Changed.', 'good');
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.say(error.message, 'bad');
    }
  };
  const add = state.mayManage.value && !isAdding && (
    <button type="button" class="primary" onClick={() => setAdding(true)} data-testid="new-list">
      <Icon name="plus" /> New list
    </button>
  );
  return (
    <Page title="Assign work" wide actions={add}>
      {isAdding && <NewList people={people} onClose={() => setAdding(false)} />}
      <datalist id="people">
        {people.map((name) => (
          <option key={name} value={name} />
        ))}
      </datalist>
      {lists.length === 0 && !isAdding && (
        <Empty icon="lists" title="No work lists yet">
          A list names the meters to read, the reader and the due date.
        </Empty>
      )}
      {lists.length > 0 && (
        <Table
          caption="Work lists"
          testid="office-lists"
          rows={lists}
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
      )}
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

function NewList({ people, onClose }: { people: string[]; onClose: () => void }) {
  const [name, setName] = useState('');
  const [assignee, setAssignee] = useState(people.length === 1 ? (people[0] ?? '') : '');
  const [due, setDue] = useState('');
  const [text, setText] = useState('');
  const [kind, setKind] = useState<Kind>('all');
  const [problem, setProblem] = useState<string | null>(null);
  const chosen = useMemo(() => {
    const words = wordsOf(text);
    return [...state.meters.value.values()].filter((meter) => matches(meter, kind, words));
  }, [text, kind, state.meters.value]);

  const create = async (event: SubmitEvent) => {
    event.preventDefault();
    const json = {
      name: name.trim(),
      assignee: assignee.trim() || null,
      due: due ? new Date(`${due}T23:59:59`).toISOString() : null,
      meters: chosen.map((meter) => meter.id),
    };
    try {
      await ask('/work_list', { method: 'POST', json });
      await refresh();
      state.say(`${json.name} has ${plural(chosen.length, 'meter')}.`, 'good');
      onClose();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
    }
  };

  return (
    <form class="card" onSubmit={(event) => void create(event)} aria-label="New work list">
      <h2>New work list</h2>
      {problem && (
        <Note tone="bad" role="alert">
          {problem}
        </Note>
      )}
      <div class="form-grid">
        <Field label="Name" id="list-name">
          <input
            id="list-name"
            required
            maxLength={120}
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </Field>
        <Field label="Reader" id="list-assignee">
          <input
            id="list-assignee"
            list="people"
            placeholder="anyone"
            value={assignee}
            onInput={(event) => setAssignee(event.currentTarget.value)}
          />
        </Field>
        <Field label="Due" id="list-due">
          <input
            id="list-due"
            type="date"
            value={due}
            onInput={(event) => setDue(event.currentTarget.value)}
          />
        </Field>
        <Field label="Meters whose street or number contains" id="list-filter">
          <input
            id="list-filter"
            type="search"
            placeholder="all"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </Field>
      </div>
      <Choice
        label="Kind of meters"
        value={kind}
        onChange={setKind}
        options={[
          ['all', 'All'],
          ['radio', 'Radio'],
          ['manual', 'By hand'],
          ['missed', 'Missed'],
        ]}
      />
      <div class="row end">
        <span class="grow" aria-live="polite">
          {plural(chosen.length, 'meter')}
        </span>
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        <button type="submit" class="primary" disabled={chosen.length === 0}>
          Create
        </button>
      </div>
    </form>
  );
}
