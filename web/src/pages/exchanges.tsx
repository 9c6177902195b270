// The exchanges of a meter: past ones, entering one, and taking back one that was a mistake.

import { useState } from 'preact/hooks';
import { attempt } from '../data/attempt';
import { ask, useAgainAfterRefresh, usePages } from '../data/office';
import { refresh } from '../data/sync';
import { exchangeFields, localMinute, newExchange } from '../lib/exchange';
import { dateTime, meterTitle, quantity, unitName } from '../lib/format';
import * as state from '../state';
import type { Exchange, Meter } from '../types';
import { DialogForm } from '../ui/form';
import { List, type Column } from '../ui/list';
import { Tag } from '../ui/parts';

const MOST = 100;

export function Exchanges({ meter }: { meter: Meter }) {
  const [isEntering, setEntering] = useState(false);
  const path = `/meter/${encodeURIComponent(meter.id)}/exchange`;
  const { data, problem, again } = usePages<Exchange>(path, MOST);
  useAgainAfterRefresh(again, meter.id);
  const takeBack = async (exchange: Exchange) => {
    const send = () => ask(`${path}/${encodeURIComponent(exchange.id)}`, { method: 'DELETE' });
    if (await attempt(send, 'The exchange was taken back.')) await refresh();
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
      <List
        caption="Exchanges of this meter, newest first"
        testid="exchanges"
        rows={data}
        problem={problem}
        rowKey={({ id }) => id}
        columns={columns}
      />
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
  // Sent again, it is the same exchange.
  const [id] = useState(() => crypto.randomUUID());
  return (
    <DialogForm
      title="Meter exchanged"
      onClose={onClose}
      id="exchange"
      testid="exchange"
      intro={
        <p>
          {meterTitle(meter)}
          {meter.serial && `, number ${meter.serial}`}
        </p>
      }
      fields={exchangeFields(unitName(meter.unit))}
      initial={{ at: localMinute(new Date()), first: '0' }}
      submit="Save"
      done="The exchange is stored."
      send={async (typed) => {
        await ask(path, { method: 'POST', json: newExchange(typed, id) });
        void refresh();
      }}
    />
  );
}
