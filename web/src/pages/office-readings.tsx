// Every reading as the server has it, decoded; conflicts are decided here; export.

import { useEffect, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { ask, download, photoUrl, usePages } from '../data/office';
import { dateTime, meterNumber, meterTitle, quantity } from '../lib/format';
import * as state from '../state';
import type { Reading } from '../types';
import { Icon } from '../ui/icons';
import { Dialog, Empty, Note, Page, Table, Tag } from '../ui/parts';
import { Link } from '../ui/router';

const MOST = 1000;
const FLAGS: Record<string, string> = {
  implausible: 'not as expected',
  backwards: 'lower than before',
  future: 'clock ahead',
  not_on_list: 'not on the list',
  superseded: 'not kept',
};

export function Readings() {
  const [method, setMethod] = useState('');
  const [list, setList] = useState('');
  const [onlyConflicts, setOnlyConflicts] = useState(false);
  const [photo, setPhoto] = useState<string | null>(null);
  const wanted = new URLSearchParams();
  if (method) wanted.set('method', method);
  if (list) wanted.set('work_list', list);
  const filter = wanted.toString();
  const { data, problem, again } = usePages<Reading>(`/reading${filter ? `?${filter}` : ''}`, MOST);
  // Live: a change at the server fetches again what is stored, and with it this.
  useEffect(again, [state.loadedAt.value]);
  const rows = (data ?? []).filter((one) => !onlyConflicts || isOpenConflict(one));

  const keep = async (reading: Reading) => {
    try {
      await ask(`/reading/${encodeURIComponent(reading.id)}/resolve`, {
        method: 'POST',
        json: { keep: true },
      });
      state.say('Decided.', 'good');
      again();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      state.say(error.message, 'bad');
    }
  };

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
      {data && rows.length === 0 && <Empty icon="chart" title="No readings" />}
      {rows.length > 0 && (
        <Table
          caption="Readings, newest first"
          testid="readings"
          rows={rows}
          rowKey={(reading) => reading.id}
          columns={[
            { name: 'Meter', cell: (reading) => <MeterLink id={reading.meter} /> },
            {
              name: 'Value',
              number: true,
              cell: (reading) => <strong>{quantity(reading.value, reading.unit)}</strong>,
            },
            { name: 'Read', cell: (reading) => dateTime(reading.at) },
            { name: 'How', cell: (reading) => <How reading={reading} onPhoto={setPhoto} /> },
            { name: 'By', cell: (reading) => reading.reader ?? reading.device ?? '' },
            {
              name: 'State',
              cell: (reading) => <Flags reading={reading} onKeep={() => void keep(reading)} />,
            },
          ]}
        />
      )}
      {data && data.length >= MOST && (
        <p class="muted">The newest {MOST} are shown; the export has them all.</p>
      )}
      {photo && <Photo id={photo} onClose={() => setPhoto(null)} />}
    </Page>
  );
}

function isOpenConflict(reading: Reading): boolean {
  return (reading.conflict_with?.length ?? 0) > 0;
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

function How({ reading, onPhoto }: { reading: Reading; onPhoto: (id: string) => void }) {
  const { photo, method } = reading;
  if (photo) {
    return (
      <button type="button" class="small" onClick={() => onPhoto(photo)}>
        <Icon name="camera" size={18} /> Photo
      </button>
    );
  }
  return <>{method === 'radio' ? 'radio' : 'by hand'}</>;
}

function Flags({ reading, onKeep }: { reading: Reading; onKeep: () => void }) {
  const flags = (reading.flags ?? []).filter((flag) => flag in FLAGS);
  if (isOpenConflict(reading)) {
    return (
      <span class="row end">
        <Tag tone="bad">conflict</Tag>
        {state.mayManage.value && (
          <button type="button" class="small" onClick={onKeep}>
            Keep this one
          </button>
        )}
      </span>
    );
  }
  if (flags.length === 0) return <Tag tone="good">ok</Tag>;
  return (
    <>
      {flags.map((flag) => (
        <Tag key={flag} tone="warn">
          {FLAGS[flag]}
        </Tag>
      ))}
    </>
  );
}

function Photo({ id, onClose }: { id: string; onClose: () => void }) {
  const [url, setUrl] = useState<string | null>(null);
  const [isGone, setGone] = useState(false);
  useEffect(() => {
    let made: string | null = null;
    void photoUrl(id).then((loaded) => {
      made = loaded;
      setUrl(loaded);
      setGone(loaded === null);
    });
    return () => {
      if (made) URL.revokeObjectURL(made);
    };
  }, [id]);
  return (
    <Dialog title="Photo of the meter" onClose={onClose}>
      {url && <img class="photo" src={url} alt="The meter's register" />}
      {isGone && <p>The photo has not arrived yet.</p>}
      <div class="dialog-actions">
        <button type="button" onClick={onClose} autofocus>
          Close
        </button>
      </div>
    </Dialog>
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
