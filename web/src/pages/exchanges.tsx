// The exchanges of a meter: past ones, entering one, and taking back one that was a mistake.

import { useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { ask, useAgainAfterRefresh, usePages } from '../data/office';
import { refresh } from '../data/sync';
import { localMinute, newExchange } from '../lib/exchange';
import { dateTime, meterTitle, quantity, unitName } from '../lib/format';
import * as state from '../state';
import type { Exchange, Meter } from '../types';
import { Dialog, Field, Note, Table, Tag, type Column } from '../ui/parts';

const MOST = 100;

export function Exchanges({ meter }: { meter: Meter }) {
  const [isEntering, setEntering] = useState(false);
  const path = `/meter/${encodeURIComponent(meter.id)}/exchange`;
  const { data, problem, again } = usePages<Exchange>(path, MOST);
  useAgainAfterRefresh(again);
  const takeBack = async (exchange: Exchange) => {
    try {
      await ask(`${path}/${encodeURIComponent(exchange.id)}`, { method: 'DELETE' });
      state.say('The exchange was taken back.', 'good');
      await refresh();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.say(error.message, 'bad');
    }
  };
  const columns: Column<Exchange>[] = [
    { name: 'Exchanged', cell: ({ at }) => dateTime(at) },
    { name: 'Old meter', number: true, cell: ({ final }) => quantity(final, meter.unit) },
    { name: 'Old number', cell: ({ old_serial }) => old_serial ?? '' },
    { name: 'New meter', number: true, cell: ({ first }) => quantity(first, meter.unit) },
    { name: 'New number', cell: ({ new_serial }) => new_serial ?? '' },
    { name: 'By', cell: ({ entered_by }) => entered_by },
    { name: 'Note', cell: (exchange) => <Remark exchange={exchange} /> },
  ];
  if (state.mayManage.value) {
    const button = (exchange: Exchange) => (
      <button type="button" class="small" onClick={() => void takeBack(exchange)}>
        Take back<span class="sr-only"> the exchange of {dateTime(exchange.at)}</span>
      </button>
    );
    const cell = (exchange: Exchange) => !exchange.withdrawn_at && button(exchange);
    columns.push({ name: 'Change', onScreen: true, cell });
  }
  return (
    <>
      {problem && <Note tone="warn">{problem}</Note>}
      {data && data.length > 0 && (
        <Table
          caption="Exchanges of this meter, newest first"
          testid="exchanges"
          rows={data}
          rowKey={({ id }) => id}
          columns={columns}
        />
      )}
      {state.mayManage.value && (
        <button type="button" onClick={() => setEntering(true)}>
          Meter exchanged
        </button>
      )}
      {isEntering && <Enter meter={meter} path={path} onClose={() => setEntering(false)} />}
    </>
  );
}

function Remark({ exchange }: { exchange: Exchange }) {
  const { note, withdrawn_at: at, withdrawn_by: by } = exchange;
  return (
    <>
      {at && <Tag tone="warn">taken back</Tag>}
      {note}
      {at && (
        <small class="muted changed">
          Taken back by {by}, {dateTime(at)}
        </small>
      )}
    </>
  );
}

function Enter({ meter, path, onClose }: { meter: Meter; path: string; onClose: () => void }) {
  const [typed, setTyped] = useState({
    at: localMinute(new Date()),
    final: '',
    first: '0',
    number: '',
    note: '',
  });
  // Sent again, it is the same exchange.
  const [id] = useState(() => crypto.randomUUID());
  const [problem, setProblem] = useState<string | null>(null);
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const made = newExchange(typed, id);
    if ('problem' in made) {
      setProblem(made.problem);
      return;
    }
    try {
      await ask(path, { method: 'POST', json: made.body });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error.message);
      return;
    }
    state.say('The exchange is stored.', 'good');
    onClose();
    await refresh();
  };
  const unit = unitName(meter.unit);
  const field = (name: keyof typeof typed, label: string, more: object) => (
    <Field label={label} id={`exchange-${name}`}>
      <input
        id={`exchange-${name}`}
        autocomplete="off"
        value={typed[name]}
        onInput={(event) => setTyped({ ...typed, [name]: event.currentTarget.value })}
        {...more}
      />
    </Field>
  );
  return (
    <Dialog title="Meter exchanged" onClose={onClose}>
      <form class="form" onSubmit={(event) => void send(event)} data-testid="exchange">
        <p>
          {meterTitle(meter)}
          {meter.serial && `, number ${meter.serial}`}
        </p>
        {field('at', 'When', { type: 'datetime-local', required: true })}
        {field('final', `Final value of the old meter, ${unit}`, { inputMode: 'decimal' })}
        {field('first', `First value of the new meter, ${unit}`, { inputMode: 'decimal' })}
        {field('number', 'Number of the new meter', { maxLength: 200 })}
        {field('note', 'Note', { maxLength: 500 })}
        {problem && (
          <Note tone="bad" role="alert">
            {problem}
          </Note>
        )}
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}
