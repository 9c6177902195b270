// Every reading as the server has it, decoded, newest first; conflicts are decided and readings corrected here; export.

import { useState } from 'preact/hooks';
import { download } from '../data/office';
import { useReadings } from '../data/readings';
import { amount, meterNumber } from '../lib/format';
import type { ReadingFilter } from '../lib/readings';
import * as state from '../state';
import { Filters } from '../ui/form';
import { Exports, Page } from '../ui/parts';
import { Link } from '../ui/router';
import { nameOf, ReadingList } from './reading-parts';

const MOST = 1000;
const METHODS = { '': 'Every method', radio: 'Radio', manual: 'By hand', photo: 'Photo' };

export function Readings() {
  const [wanted, setWanted] = useState({ method: '', work_list: '', conflict: '' });
  const filter: ReadingFilter = {
    ...(wanted.method && { method: wanted.method }),
    ...(wanted.work_list && { work_list: wanted.work_list }),
    ...(wanted.conflict && { conflict: 'true' }),
  };
  const { data, problem, again } = useReadings(filter, MOST);
  const query = new URLSearchParams(filter).toString();
  const save = (kind: string) =>
    download(`/export/readings.${kind}${query && `?${query}`}`, `readings.${kind}`);
  const isFiltered = Object.keys(filter).length > 0;
  const lists = state.lists.value.map(({ id, name }) => [id, name] as const);
  return (
    <Page wide actions={<Exports onExport={save} />}>
      <Filters
        fields={[
          { name: 'method', label: 'Method', options: METHODS },
          { name: 'work_list', label: 'Work list', options: [['', 'Every work list'], ...lists] },
          { name: 'conflict', label: 'Only conflicts', kind: 'checkbox' },
        ]}
        values={wanted}
        onChange={setWanted}
      />
      <ReadingList
        caption="Readings, newest first"
        testid="readings"
        rows={data}
        problem={problem}
        again={again}
        empty={
          isFiltered
            ? { icon: 'chart', title: 'No matching readings', hint: 'Choose another method or work list.' }
            : {
                icon: 'chart',
                title: 'No readings',
                hint: 'They appear here when readers or receivers send them.',
              }
        }
        columns={[{ name: 'Meter', cell: (reading) => <MeterLink id={reading.meter} /> }]}
        rest={(data?.length ?? 0) >= MOST && `The newest ${amount(MOST)} are shown; the export contains all.`}
      />
    </Page>
  );
}

function MeterLink({ id }: { id: string }) {
  const meter = state.meters.value.get(id);
  return (
    <Link to={`/meters/${encodeURIComponent(id)}`}>
      {nameOf(id)} {meter?.street && <small class="muted">{meterNumber(meter)}</small>}
    </Link>
  );
}
