// Every reading as the server has it, decoded, newest first; conflicts are decided and readings corrected here; export.

import { useEffect, useState } from 'preact/hooks';
import { download, usePages } from '../data/office';
import { amount, meterNumber, meterTitle } from '../lib/format';
import * as state from '../state';
import type { Reading } from '../types';
import { Icon } from '../ui/icons';
import { Empty, Note, Page, Table } from '../ui/parts';
import { Link } from '../ui/router';
import { Correct, keep, Photo, readingColumns } from './reading-parts';

const MOST = 1000;

export function Readings() {
  const [method, setMethod] = useState('');
  const [list, setList] = useState('');
  const [onlyConflicts, setOnlyConflicts] = useState(false);
  const [photo, setPhoto] = useState<string | null>(null);
  const [corrected, setCorrected] = useState<Reading | null>(null);
  const wanted = new URLSearchParams();
  if (method) wanted.set('method', method);
  if (list) wanted.set('work_list', list);
  if (onlyConflicts) wanted.set('conflict', 'true');
  const filter = wanted.toString();
  const path = `/reading?order=desc${filter ? `&${filter}` : ''}`;
  const { data, problem, again } = usePages<Reading>(path, MOST);
  // Live: a change at the server fetches again what is stored, and with it this.
  useEffect(again, [state.loadedAt.value]);
  const rows = data ?? [];
  const columns = readingColumns({
    onPhoto: setPhoto,
    onCorrect: setCorrected,
    onKeep: (reading) => void keep(reading).then(again),
  });

  return (
    <Page title="Readings" wide actions={<Export filter={filter} />}>
      <div class="filters">
        <select aria-label="Method" value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
          <option value="">Every method</option>
          <option value="radio">Radio</option>
          <option value="manual">By hand</option>
          <option value="photo">Photo</option>
        </select>
        <select aria-label="Work list" value={list} onChange={(event) => setList(event.currentTarget.value)}>
          <option value="">Every work list</option>
          {state.lists.value.map((one) => (
            <option key={one.id} value={one.id}>
              {one.name}
            </option>
          ))}
        </select>
        <label class="check">
          <input
            type="checkbox"
            checked={onlyConflicts}
            onChange={(event) => setOnlyConflicts(event.currentTarget.checked)}
          />
          Only conflicts
        </label>
      </div>
      {problem && <Note tone="warn">{problem}</Note>}
      {data && rows.length === 0 && (
        <Empty icon="chart" title={filter ? 'No matching readings' : 'No readings'} />
      )}
      {rows.length > 0 && (
        <Table
          caption="Readings, newest first"
          testid="readings"
          rows={rows}
          rowKey={(reading) => reading.id}
          columns={[{ name: 'Meter', cell: (reading) => <MeterLink id={reading.meter} /> }, ...columns]}
        />
      )}
      {data && data.length >= MOST && (
        <p class="muted">The newest {amount(MOST)} are shown; the export contains all.</p>
      )}
      {photo && <Photo id={photo} onClose={() => setPhoto(null)} />}
      {corrected && (
        <Correct
          reading={corrected}
          meter={nameOf(corrected.meter)}
          onClose={() => setCorrected(null)}
          onDone={() => {
            setCorrected(null);
            again();
          }}
        />
      )}
    </Page>
  );
}

function nameOf(id: string): string {
  const meter = state.meters.value.get(id);
  return meter ? meterTitle(meter) : id;
}

function MeterLink({ id }: { id: string }) {
  const meter = state.meters.value.get(id);
  return (
    <Link to={`/meters/${encodeURIComponent(id)}`}>
      {meter ? meterTitle(meter) : id}
      {meter?.street && <small class="muted"> {meterNumber(meter)}</small>}
    </Link>
  );
}

function Export({ filter }: { filter: string }) {
  const query = filter ? `?${filter}` : '';
  return (
    <>
      {(['csv', 'xlsx'] as const).map((kind) => (
        <button
          key={kind}
          type="button"
          class="small"
          onClick={() => void download(`/export/readings.${kind}${query}`, `readings.${kind}`)}
        >
          <Icon name="export" size={18} /> {kind === 'csv' ? 'CSV' : 'Excel'}
        </button>
      ))}
    </>
  );
}
