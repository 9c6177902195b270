// Reading by radio: driving past (dark, big figures, the map follows the van) and walking by (what is
// near, how strong, when last heard).

import { useEffect, useMemo, useState } from 'preact/hooks';
import { followPosition } from '../data/route';
import { countedSince, forgetHeard } from '../live/heard';
import { amount, ago, dateTime, mediumName, meterTitle, percent, plural } from '../lib/format';
import { metresBetween } from '../lib/geo';
import { pointsOfHeard } from '../lib/points';
import { canReceive, receiver, startReceiver, stopReceiver } from '../radio/receiver';
import * as state from '../state';
import type { Heard, Meter, Place } from '../types';
import { Form } from '../ui/form';
import { Icon, mediumIcon } from '../ui/icons';
import { List } from '../ui/list';
import { MapView } from '../ui/map';
import { Choice, Note, Page, Signal } from '../ui/parts';
import { navigate, query } from '../ui/router';
import { far, MeterLink } from './lists';
import { movers } from './map';

const LAST_SHOWN = 6;
const NEAR_SHOWN = 40;

/** Radio meters of the chosen list, or of the whole installation. */
function wanted(list: string | null): Meter[] {
  const chosen = state.lists.value.find((one) => one.id === list);
  const all = chosen?.tasks?.map((task) => task.meter) ?? [...state.meters.value.values()];
  return all.filter((meter) => meter.radio);
}

/** Meters of a list that have been read, and those that were read by radio since this time. */
function readOn(list: string | null, meters: Meter[], sinceMs: number): Set<string> {
  const tasks = state.lists.value.find((one) => one.id === list)?.tasks ?? [];
  const done = tasks.filter((task) => task.state === 'read').map((task) => task.meter.id);
  const isNew = ({ last }: Meter) => last?.method === 'radio' && Date.parse(last.at) >= sinceMs;
  return new Set([...done, ...meters.filter(isNew).map((meter) => meter.id)]);
}

function useScreenOn(): void {
  useEffect(() => {
    let lock: WakeLockSentinel | null = null;
    const take = () => {
      if (document.visibilityState !== 'visible') return;
      void navigator.wakeLock?.request('screen').then(
        (taken) => (lock = taken),
        () => undefined,
      );
    };
    take();
    document.addEventListener('visibilitychange', take);
    return () => {
      document.removeEventListener('visibilitychange', take);
      void lock?.release();
    };
  }, []);
}

function useRadio() {
  useScreenOn();
  useEffect(followPosition, []);
  const listId = query.value.get('list');
  const meters = useMemo(() => wanted(listId), [listId, state.lists.value, state.meters.value]);
  return { listId, meters };
}

function ModeChoice({ now }: { now: 'drive' | 'walk' }) {
  const list = query.value.get('list');
  const go = (mode: 'drive' | 'walk') =>
    navigate(`/${mode}${list ? `?list=${encodeURIComponent(list)}` : ''}`, 'replace');
  return <Choice label="Mode" value={now} onChange={go} options={{ drive: 'Drive-by', walk: 'Walk-by' }} />;
}

export function Drive() {
  const { listId, meters } = useRadio();
  const [isFollowing, setFollowing] = useState(true);
  const heard = state.heard.value;
  // What the server decoded is read, whoever heard it and whenever.
  const since = useMemo(() => countedSince(Date.now()), [heard.size === 0]);
  const read = useMemo(() => readOn(listId, meters, since), [listId, meters, state.lists.value, since]);
  const done = useMemo(
    () => meters.filter((meter) => heard.has(meter.id) || read.has(meter.id)).length,
    [meters, heard, read],
  );
  const points = useMemo(() => pointsOfHeard(meters, heard, read), [meters, heard, read]);
  const moving = useMemo(movers, [state.vans.value, state.position.value]);
  const last = useMemo(() => [...heard.values()].slice(-LAST_SHOWN).reverse(), [heard]);
  const follow = vanPlace(last);
  return (
    <div class="drive" data-theme="dark" data-testid="drive">
      <div class="drive-figures">
        <h1 class="sr-only" tabIndex={-1}>
          Drive-by
        </h1>
        <ModeChoice now="drive" />
        <div class="figures">
          <Figure
            name={listId ? 'read or received' : `received since ${dateTime(since)}`}
            value={done}
            testid="heard-count"
          />
          <Figure name="remaining" value={meters.length - done} testid="remaining-count" />
          <Figure name="per minute" value={perMinute(heard)} />
        </div>
        <div
          class="drive-progress"
          role="progressbar"
          aria-label="Meters received"
          aria-valuenow={percent(done, meters.length)}
          aria-valuemin={0}
          aria-valuemax={100}
        >
          <span style={{ width: `${percent(done, meters.length)}%` }} />
        </div>
        <ListChoice value={listId} />
        <LiveState />
        <List
          class="last-heard"
          label="Last received"
          testid="last-heard"
          rows={last}
          rowKey={({ meter }) => meter}
          row={(one) => <LastHeard heard={one} />}
        />
        {heard.size > 0 && (
          <button type="button" class="quiet" onClick={forgetHeard}>
            Reset the count
          </button>
        )}
      </div>
      <div class="drive-map">
        <MapView
          points={points}
          streetsOf={meters}
          movers={moving}
          follow={isFollowing ? follow : null}
          onPoint={(id) => navigate(`/meters/${encodeURIComponent(id)}`)}
          onDrag={() => setFollowing(false)}
          label="Map of received meters"
        />
        {!isFollowing && (
          <button type="button" class="float follow" onClick={() => setFollowing(true)}>
            <Icon name="here" size={20} /> Follow
          </button>
        )}
      </div>
    </div>
  );
}

function Figure({ name, value, testid }: { name: string; value: number; testid?: string }) {
  return (
    <div class="figure">
      <strong data-testid={testid}>{amount(value)}</strong>
      <span>{name}</span>
    </div>
  );
}

/** The van that was last heard of; else this device; else where something was last heard. */
function vanPlace(last: Heard[]): Place | null {
  const device = last[0]?.receiver;
  const van = (device && state.vans.value.get(device)) || [...state.vans.value.values()].at(-1);
  return van?.place ?? state.position.value?.place ?? last[0]?.place ?? null;
}

function perMinute(heard: ReadonlyMap<string, Heard>): number {
  const since = state.clock.value - 60_000;
  let count = 0;
  for (const { at } of heard.values()) if (Date.parse(at) >= since) count += 1;
  return count;
}

function ListChoice({ value }: { value: string | null }) {
  const open = state.lists.value.filter((list) => list.state === 'open');
  if (open.length === 0) return null;
  return (
    <select
      aria-label="Meters of"
      value={value ?? ''}
      onChange={(event) => {
        const { value: chosen } = event.currentTarget;
        navigate(
          chosen ? `${location.pathname}?list=${encodeURIComponent(chosen)}` : location.pathname,
          'replace',
        );
      }}
    >
      <option value="">All radio meters</option>
      {open.map((list) => (
        <option key={list.id} value={list.id}>
          {list.name}
        </option>
      ))}
    </select>
  );
}

const RECEIVERS = {
  57600: 'iM871A, iM170A (57,600 baud)',
  9600: 'AMB8465 (9,600 baud)',
  38400: 'CUL (38,400 baud)',
  115200: 'rtl_wmbus lines (115,200 baud)',
};

/** Where frames come from, or why none do. */
function LiveState() {
  const [isOpen, setOpen] = useState(false);
  const here = receiver.value;
  return (
    <div class="sources">
      <p class="small-text">
        <span class={state.isLive.value ? 'dot good' : 'dot'} aria-hidden="true" />{' '}
        {state.isLive.value ? 'Live from the vans' : 'No live connection to the vans'}
        {here &&
          ` · receiver here: ${plural(here.frames, 'frame')}${here.wrong > 0 ? `, ${here.wrong} damaged` : ''}`}
      </p>
      {here?.problem && <Note tone="warn">{here.problem}</Note>}
      {canReceive && !here && (
        <button type="button" class="small" onClick={() => setOpen(!isOpen)} aria-expanded={isOpen}>
          <Icon name="usb" size={18} /> Receiver on this device
        </button>
      )}
      {here && (
        <button type="button" class="small" onClick={() => void stopReceiver()}>
          Disconnect receiver
        </button>
      )}
      {isOpen && !here && (
        <div class="card">
          <Form
            fields={[
              {
                name: 'baud',
                label: 'Receiver',
                hint: 'The app detects the kind of frames.',
                options: RECEIVERS,
              },
            ]}
            initial={{ baud: '57600' }}
            submit="Choose port"
            send={({ baud }) => {
              setOpen(false);
              void startReceiver(Number(baud));
            }}
          />
        </div>
      )}
    </div>
  );
}

function LastHeard({ heard }: { heard: Heard }) {
  const meter = state.meters.value.get(heard.meter);
  return (
    <>
      <Icon name={mediumIcon(meter?.medium ?? heard.medium)} size={20} />
      <span class="grow">
        <strong>{meter ? meterTitle(meter) : (heard.address ?? heard.meter)}</strong>
        <small class="muted">
          {[heard.manufacturer ?? meter?.manufacturer, mediumName(meter?.medium ?? heard.medium)]
            .filter(Boolean)
            .join(' · ')}
        </small>
      </span>
      <Signal dbm={heard.rssi_dbm} />
      <small class="muted when">{ago(heard.at, state.clock.value)}</small>
    </>
  );
}

export function Walk() {
  const { listId, meters } = useRadio();
  const heard = state.heard.value;
  const here = state.position.value?.place ?? null;
  const near = useMemo(() => nearest(meters, here, heard).slice(0, NEAR_SHOWN), [meters, here, heard]);
  return (
    <Page>
      <ModeChoice now="walk" />
      <ListChoice value={listId} />
      <LiveState />
      {!here && <Note tone="info">Without your position, the strongest meters come first.</Note>}
      <List
        class="rows"
        testid="nearby"
        rows={near}
        empty={{
          icon: 'radio',
          title: 'No radio meters here',
          hint: 'Choose another work list, or all meters.',
        }}
        rowKey={({ id }) => id}
        row={(meter) => {
          const { at, rssi_dbm: dbm } = heard.get(meter.id) ?? {};
          const when = at ? `received ${ago(at, state.clock.value)}` : 'not received yet';
          return (
            <MeterLink meter={meter} list={listId} about={[far(meter, here), when]}>
              {typeof dbm === 'number' && <small class="muted">{Math.round(dbm)} dBm</small>}
              <Signal dbm={dbm} />
            </MeterLink>
          );
        }}
      />
    </Page>
  );
}

function nearest(meters: Meter[], here: Place | null, heard: ReadonlyMap<string, Heard>): Meter[] {
  const rank = (meter: Meter) =>
    here && meter.place ? metresBetween(here, meter.place) : -(heard.get(meter.id)?.rssi_dbm ?? -999);
  return meters
    .map((meter) => [rank(meter), meter] as const)
    .sort(([a], [b]) => a - b)
    .map(([, meter]) => meter);
}
