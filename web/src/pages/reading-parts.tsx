// What tables of readings have in common: how one was taken, its state, and correcting it.

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { ask, photoUrl } from '../data/office';
import { dateTime, quantity, unitName } from '../lib/format';
import { parseValue } from '../lib/plausibility';
import * as state from '../state';
import type { Protection, Reading } from '../types';
import { Icon } from '../ui/icons';
import { Dialog, Field, Note, Tag, type Column } from '../ui/parts';

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

export function isOpenConflict(reading: Reading): boolean {
  return (reading.conflict_with?.length ?? 0) > 0;
}

function isVoid(reading: Reading): boolean {
  return (reading.flags ?? []).some((flag) => ['withdrawn', 'superseded', 'unproven'].includes(flag));
}

/** The columns that every table of readings has. */
export function readingColumns(does: {
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

export function Photo({ id, onClose }: { id: string; onClose: () => void }) {
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
export function keep(reading: Reading): Promise<boolean> {
  const path = `/reading/${encodeURIComponent(reading.id)}/resolve`;
  return attempt(() => ask(path, { method: 'POST', json: { keep: true } }), 'Conflict resolved.');
}

async function attempt(work: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await work();
    state.say(done, 'good');
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    state.say(error.message, 'bad');
    return false;
  }
}

/** Corrects, withdraws or restores a reading; each takes a reason. */
export function Correct(props: {
  reading: Reading;
  meter: ComponentChildren;
  onClose: () => void;
  onDone: () => void;
}) {
  const { reading } = props;
  const [text, setText] = useState(String(reading.value));
  const [reason, setReason] = useState('');
  const [problem, setProblem] = useState<string | null>(null);
  const isWithdrawn = (reading.flags ?? []).includes('withdrawn');
  const isOut = isWithdrawn || (reading.flags ?? []).includes('unproven');
  const send = async (change: object) => {
    setProblem(null);
    if (reason.trim() === '') {
      setProblem('Enter a reason, which is stored with the reading.');
      return;
    }
    try {
      await ask(`/reading/${encodeURIComponent(reading.id)}`, {
        method: 'PATCH',
        ifMatch: reading.etag,
        json: { ...change, reason: reason.trim() },
      });
      state.say('Changed.', 'good');
      props.onDone();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const isStale = error.status === 412;
      setProblem(
        isStale
          ? 'Somebody else has changed this reading: close this window and check the new value.'
          : error.message,
      );
    }
  };
  const correct = (event: SubmitEvent) => {
    event.preventDefault();
    const value = parseValue(text);
    if (value === null) setProblem('Digits and one decimal point only.');
    else if (value === reading.value) setProblem('This is the current value.');
    else void send({ value });
  };
  return (
    <Dialog title="Correct a reading" onClose={props.onClose}>
      <form class="form" onSubmit={correct} data-testid="correct">
        <p>
          {props.meter}, {dateTime(reading.at)}, by {reading.reader ?? reading.device ?? 'somebody'}
        </p>
        <Field label={`Value, ${unitName(reading.unit)}`} id="correct-value">
          <input
            id="correct-value"
            inputMode="decimal"
            autocomplete="off"
            value={text}
            disabled={isWithdrawn}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </Field>
        <Field label="Reason" id="correct-reason" hint="Stored with your name and the previous value.">
          <input
            id="correct-reason"
            maxLength={500}
            aria-describedby="correct-reason-hint"
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
        </Field>
        {problem && (
          <Note tone="bad" role="alert">
            {problem}
          </Note>
        )}
        <div class="dialog-actions three">
          <button type="button" onClick={props.onClose}>
            Cancel
          </button>
          <button type="button" onClick={() => void send({ withdrawn: !isOut })}>
            {isOut ? 'Restore' : 'Withdraw'}
          </button>
          <button type="submit" class="primary" disabled={isWithdrawn}>
            Correct
          </button>
        </div>
      </form>
    </Dialog>
  );
}
