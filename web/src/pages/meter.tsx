// One meter: what is known of it, and reading it, by hand or with a photo.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { item } from '../data/outbox';
import { submit } from '../data/sync';
import {
  ago,
  dateTime,
  decimal,
  mediumName,
  meterNumber,
  meterTitle,
  quantity,
  unitName,
} from '../lib/format';
import { shrink } from '../lib/photo';
import { check } from '../lib/plausibility';
import { takeReading } from '../lib/reading';
import { listFor, nextOpen, seenTasks } from '../lib/work';
import * as state from '../state';
import type { Meter } from '../types';
import { DialogForm, Form } from '../ui/form';
import { Icon, mediumIcon } from '../ui/icons';
import { Empty, FactList, Note, Page, Signal, Tag } from '../ui/parts';
import { navigate, query } from '../ui/router';
import { Consumption } from './consumption';
import { History } from './history';
import { Radio } from './reading-parts';

export function MeterPage({ id }: { id: string }) {
  const meter = state.meters.value.get(id) ?? inLists(id);
  const list = query.value.get('list');
  const back = list ? `/lists/${encodeURIComponent(list)}` : '/map';
  if (!meter) {
    return (
      <Page back={back}>
        <Empty icon="other" title="This meter is not on this device" />
      </Page>
    );
  }
  return (
    <Page title={meterTitle(meter)} back={back}>
      <About meter={meter} />
      {state.mayWrite.value && (
        <Read key={meter.id} meter={meter} list={listFor(meter.id, state.lists.value, list)} />
      )}
      {state.isOffice.value && <Consumption meter={meter} />}
      {state.isOffice.value && <History meter={meter} />}
    </Page>
  );
}

function inLists(id: string): Meter | undefined {
  for (const list of state.lists.value) {
    const task = list.tasks?.find((one) => one.meter.id === id);
    if (task) return task.meter;
  }
  return undefined;
}

function About({ meter }: { meter: Meter }) {
  const heard = state.heard.value.get(meter.id);
  const pending = state.pendingReadings.value.get(meter.id);
  return (
    <section class="card about" aria-label="About this meter">
      <div class="row">
        <span class={`medium ${meter.medium}`}>
          <Icon name={mediumIcon(meter.medium)} />
        </span>
        <span class="grow">
          <strong>{mediumName(meter.medium)}</strong>
          <small class="muted">
            {meterNumber(meter)}
            {meter.manufacturer && ` · ${meter.manufacturer}`}
          </small>
        </span>
        {meter.state === 'leak_suspected' && <Tag tone="bad">possible leak</Tag>}
        {meter.state === 'missed' && <Tag tone="warn">missed</Tag>}
        {meter.radio && <Tag>radio</Tag>}
      </div>
      <FactList
        facts={[
          [
            'Last reading',
            meter.last && (
              <>
                {quantity(meter.last.value, meter.last.unit)}{' '}
                <small class="muted">
                  {dateTime(meter.last.at)}
                  {meter.last.protection && ' · '}
                </small>
                {meter.last.protection && <Radio protection={meter.last.protection} />}
              </>
            ),
          ],
          [
            'Waiting to be sent',
            pending ? (
              <span data-testid="pending-value">
                {quantity(pending.value, pending.unit)} <Tag tone="info">to send</Tag>
              </span>
            ) : null,
          ],
          [
            'Last received',
            meter.radio ? (
              <>
                {heard && <Signal dbm={heard.rssi_dbm} />}{' '}
                {heard ? ago(heard.at, state.clock.value) : 'not since the app was opened'}
              </>
            ) : null,
          ],
          ['Note', meter.note],
        ]}
      />
    </section>
  );
}

function Read({ meter, list }: { meter: Meter; list: string | null }) {
  const [photo, setPhoto] = useState<Blob | null>(null);
  const [asked, setAsked] = useState<{ value: number; reason: string; note: string } | null>(null);
  const { expected } = meter;

  const store = async (value: number, note: string, confirmed: boolean) => {
    const owner = { user: state.user.value?.name ?? '', twin: state.twin.value?.id ?? '' };
    const place = state.position.value?.place ?? null;
    const taken = { meter, value, confirmed, note, place, workList: list, photo, device: state.device.value };
    const { items, photo: bytes } = takeReading(taken, owner, Date.now());
    await submit(items, bytes);
    state.say(
      `Stored: ${quantity(value, meter.unit)}. ${state.online.value ? '' : 'It will be sent when you are online.'}`,
      'good',
    );
    goOn(meter.id, list);
  };
  const wrong = (text: string) => {
    const verdict = check(text, meter);
    return verdict.kind === 'wrong' ? verdict.reason : null;
  };

  return (
    <>
      <Form
        class="card read"
        label="Read this meter"
        testid="read"
        fields={[
          {
            name: 'value',
            label: 'Meter shows',
            kind: 'decimal',
            check: wrong,
            isEager: true,
            hint: expected && `Expected ${decimal(expected.low)} to ${quantity(expected.high, meter.unit)}`,
            suffix: unitName(meter.unit),
            input: { placeholder: '0'.repeat(Math.min(meter.register_digits ?? 5, 8)) },
          },
          { name: 'note', label: 'Note', kind: 'textarea', isPlaced: true },
        ]}
        submit={photo ? 'Save reading and photo' : 'Save reading'}
        icon="check"
        actions="thumb"
        keeps
        send={({ value, note }) => {
          const verdict = check(value, meter);
          if (verdict.kind === 'fine') return store(verdict.value, note, false);
          if (verdict.kind === 'doubtful') setAsked({ ...verdict, note });
          return undefined;
        }}
      >
        {({ values, field }) => (
          <>
            <Doubt text={values.value} meter={meter} />
            <PhotoInput photo={photo} onPhoto={setPhoto} />
            <details class="more-fields">
              <summary>Note, or no access</summary>
              {field('note')}
              {list && (
                <button type="button" onClick={() => void markUnreachable(meter, list, values.note)}>
                  No access to this meter
                </button>
              )}
            </details>
          </>
        )}
      </Form>
      {asked && (
        <DialogForm
          title="Is this right?"
          intro={
            <>
              <p class="big-value">{quantity(asked.value, meter.unit)}</p>
              <p>{asked.reason}</p>
            </>
          }
          fields={[]}
          cancel="Correct it"
          onClose={() => setAsked(null)}
          submit="It is right, save"
          send={() => store(asked.value, asked.note, true)}
        />
      )}
    </>
  );
}

/** What is unlikely about a value, while it is typed; saving asks. */
function Doubt({ text, meter }: { text: string; meter: Meter }) {
  const verdict = check(text, meter);
  return (
    <div aria-live="polite">{verdict.kind === 'doubtful' && <Note tone="warn">{verdict.reason}</Note>}</div>
  );
}

function PhotoInput({ photo, onPhoto }: { photo: Blob | null; onPhoto: (photo: Blob | null) => void }) {
  const [problem, setProblem] = useState<string | null>(null);
  const url = useMemo(() => (photo ? URL.createObjectURL(photo) : null), [photo]);
  useEffect(() => () => (url ? URL.revokeObjectURL(url) : undefined), [url]);
  const choose = async (file: File | undefined) => {
    if (!file) return;
    setProblem(null);
    try {
      onPhoto(await shrink(file, state.photoPixels.value));
    } catch {
      setProblem('The browser cannot read this picture.');
    }
  };
  return (
    <div class="photo-input">
      {url && <img src={url} alt="The meter, as it will be sent" />}
      <label class="button">
        <Icon name="camera" />
        {photo ? 'Take another photo' : 'Take a photo'}
        <input
          class="sr-only"
          type="file"
          accept="image/*"
          capture="environment"
          data-testid="photo"
          onChange={(event) => {
            const input = event.currentTarget;
            void choose(input.files?.[0]).then(() => (input.value = ''));
          }}
        />
      </label>
      {photo && (
        <button type="button" class="quiet" onClick={() => onPhoto(null)}>
          Remove ({Math.ceil(photo.size / 1024)} kB)
        </button>
      )}
      {problem && (
        <Note tone="bad" role="alert">
          {problem}
        </Note>
      )}
    </div>
  );
}

async function markUnreachable(meter: Meter, list: string, note: string): Promise<void> {
  const owner = { user: state.user.value?.name ?? '', twin: state.twin.value?.id ?? '' };
  const payload = {
    kind: 'task',
    work_list: list,
    meter: meter.id,
    outcome: 'unreachable',
    note: note.trim() || null,
  } as const;
  await submit([item(crypto.randomUUID(), owner, payload, Date.now())]);
  state.say('Noted: no access.', 'info');
  goOn(meter.id, list);
}

/** On to the next open meter of the list, or back to the list when that was the last. */
function goOn(meter: string, listId: string | null): void {
  const list = state.lists.value.find((one) => one.id === listId);
  if (!list || !query.value.has('list')) return;
  const next = nextOpen(seenTasks(list, state.mine.value), meter, state.position.value?.place ?? null);
  const inList = `list=${encodeURIComponent(list.id)}`;
  navigate(
    next ? `/meters/${encodeURIComponent(next.meter.id)}?${inList}` : `/lists/${encodeURIComponent(list.id)}`,
  );
}
