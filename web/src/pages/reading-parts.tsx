// Tables of readings: how each was taken, its state, and correcting it.

import { useEffect, useState } from 'preact/hooks';
import { attempt } from '../data/attempt';
import { ask, photoUrl } from '../data/office';
import { dateTime, meterTitle, quantity, unitName } from '../lib/format';
import { noValue, parseValue } from '../lib/plausibility';
import * as state from '../state';
import type { Protection, Reading } from '../types';
import { Icon } from '../ui/icons';
import { DialogForm } from '../ui/form';
import { List, type Column, type ListProps } from '../ui/list';
import { Dialog, Tag } from '../ui/parts';

const FLAGS: Record<string, string> = {
  implausible: 'not as expected',
  backwards: 'lower than before',
  future: 'clock ahead',
  not_on_list: 'not on the list',
  superseded: 'not kept',
  corrected: 'corrected',
  withdrawn: 'withdrawn',
  unproven: 'may be forged',
};
const DONE: Record<string, string> = {
  corrected: 'Corrected',
  withdrawn: 'Withdrawn',
  restored: 'Restored',
  kept: 'Kept in a conflict',
  superseded: 'Not kept in a conflict',
};

function isOpenConflict(reading: Reading): boolean {
  return (reading.conflict_with?.length ?? 0) > 0;
}

function isVoid(reading: Reading): boolean {
  return (reading.flags ?? []).some((flag) => ['withdrawn', 'superseded', 'unproven'].includes(flag));
}

function readingColumns(does: {
  onPhoto: (id: string) => void;
  onKeep: (reading: Reading) => void;
  onCorrect: (reading: Reading) => void;
}): Column<Reading>[] {
  const columns: Column<Reading>[] = [
    { name: 'Value', number: true, cell: (reading) => <Value reading={reading} /> },
    { name: 'Read', cell: (reading) => dateTime(reading.at) },
    { name: 'Method', cell: (reading) => <How reading={reading} onPhoto={does.onPhoto} /> },
    { name: 'By', cell: (reading) => reading.reader ?? reading.device ?? '' },
    { name: 'State', cell: (reading) => <Flags reading={reading} onKeep={() => does.onKeep(reading)} /> },
  ];
  if (state.mayManage.value) {
    columns.push({
      name: 'Change',
      onScreen: true,
      cell: (reading) => (
        <button type="button" class="small" onClick={() => does.onCorrect(reading)}>
          Correct<span class="sr-only"> the reading of {dateTime(reading.at)}</span>
        </button>
      ),
    });
  }
  return columns;
}

function Value({ reading }: { reading: Reading }) {
  const shown = quantity(reading.value, reading.unit);
  return isVoid(reading) ? <s class="muted">{shown}</s> : <strong>{shown}</strong>;
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
  return <>{method === 'radio' ? <Radio protection={reading.protection} /> : 'by hand'}</>;
}

const PROTECTION: Record<Protection, string> = {
  unauthenticated: 'anybody could have sent it',
  encrypted: 'encrypted, not authenticated',
  authenticated: 'authenticated',
};

/** How far it is sure that the meter sent a value. */
export function Radio({ protection }: { protection: Protection | null | undefined }) {
  return (
    <>
      radio
      {protection && <small class="muted"> {PROTECTION[protection]}</small>}
    </>
  );
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
  return (
    <>
      {flags.length === 0 && <Tag tone="good">ok</Tag>}
      {flags.map((flag) => (
        <Tag key={flag} tone={flag === 'corrected' ? 'info' : 'warn'}>
          {FLAGS[flag]}
        </Tag>
      ))}
      {reading.doubt && <small class="muted changed">{reading.doubt}</small>}
      <Changed reading={reading} />
    </>
  );
}

/** What it was before, who changed it, when and why. */
function Changed({ reading }: { reading: Reading }) {
  const { changed, original, unit } = reading;
  if (!changed) return null;
  return (
    <small class="muted changed">
      {original && `Was ${quantity(original.value, unit)}. `}
      {DONE[changed.action] ?? changed.action} by {changed.by}, {dateTime(changed.at)}
      {changed.reason && `: ${changed.reason}`}
    </small>
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

/** Lets one of two contradicting readings count; true if the server did. */
function keep(reading: Reading): Promise<boolean> {
  const path = `/reading/${encodeURIComponent(reading.id)}/resolve`;
  return attempt(() => ask(path, { method: 'POST', json: { keep: true } }), 'Conflict resolved.');
}

/** Corrects, withdraws or restores a reading; each takes a reason. */
function Correct(props: { reading: Reading; onClose: () => void; onDone: () => void }) {
  const { reading, onClose, onDone } = props;
  const isWithdrawn = (reading.flags ?? []).includes('withdrawn');
  const isOut = isWithdrawn || (reading.flags ?? []).includes('unproven');
  const change = async (changes: object, reason: string) => {
    const path = `/reading/${encodeURIComponent(reading.id)}`;
    await ask(path, { method: 'PATCH', ifMatch: reading.etag, json: { ...changes, reason } });
    onDone();
  };
  return (
    <DialogForm
      title="Correct a reading"
      onClose={onClose}
      id="correct"
      testid="correct"
      intro={
        <p>
          {nameOf(reading.meter)}, {dateTime(reading.at)}, by {reading.reader ?? reading.device ?? 'somebody'}
        </p>
      }
      fields={[
        {
          name: 'value',
          label: `Value, ${unitName(reading.unit)}`,
          kind: 'decimal',
          required: true,
          check: (text) =>
            noValue(text) ?? (parseValue(text) === reading.value ? 'This is the current value.' : null),
          input: { disabled: isWithdrawn },
        },
        {
          name: 'reason',
          label: 'Reason',
          required: 'Enter a reason, which is stored with the reading.',
          hint: 'Stored with your name and the previous value.',
          input: { maxLength: 500 },
        },
      ]}
      initial={{ value: String(reading.value) }}
      submit="Correct"
      done="Changed."
      send={({ value, reason }) => change({ value: parseValue(value) }, reason)}
      others={[
        {
          label: isOut ? 'Restore' : 'Withdraw',
          checks: ['reason'],
          done: 'Changed.',
          send: ({ reason }) => change({ withdrawn: !isOut }, reason),
        },
      ]}
      isBlocked={isWithdrawn}
    />
  );
}

export function nameOf(id: string): string {
  const meter = state.meters.value.get(id);
  return meter ? meterTitle(meter) : id;
}

/** Readings as a table, where photos are looked at, conflicts decided and values corrected. */
export function ReadingList(
  props: Omit<ListProps<Reading>, 'rowKey'> & { columns?: readonly Column<Reading>[]; again: () => void },
) {
  const { again, columns = [], ...list } = props;
  const [photo, setPhoto] = useState<string | null>(null);
  const [corrected, setCorrected] = useState<Reading | null>(null);
  const common = readingColumns({
    onPhoto: setPhoto,
    onCorrect: setCorrected,
    onKeep: (reading) => void keep(reading).then(again),
  });
  return (
    <>
      <List {...list} rowKey={({ id }) => id} columns={[...columns, ...common]} />
      {photo && <Photo id={photo} onClose={() => setPhoto(null)} />}
      {corrected && <Correct reading={corrected} onClose={() => setCorrected(null)} onDone={again} />}
    </>
  );
}
