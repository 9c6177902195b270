// The map of all meters, or of one work list, with search and a list of the same for those who want no map.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { followPosition } from '../data/route';
import { meterNumber, plural } from '../lib/format';
import { metresBetween } from '../lib/geo';
import { pointsOfAll, pointsOfList } from '../lib/points';
import { found } from '../lib/search';
import * as state from '../state';
import type { Meter } from '../types';
import { Icon } from '../ui/icons';
import type { Mover } from '../ui/leaflet-map';
import { List } from '../ui/list';
import { MapView } from '../ui/map';
import { Link, navigate, query } from '../ui/router';
import { far, MeterLink } from './lists';

const PAGE = 60;

export function movers(): Mover[] {
  const all: Mover[] = [...state.vans.value]
    .filter(([device]) => device !== state.device.value)
    .map(([id, { place }]) => ({ id, place, kind: 'van', label: id }));
  const me = state.position.value;
  if (me) all.push({ id: 'me', place: me.place, kind: 'me', accuracyM: me.accuracyM, label: 'You are here' });
  return all;
}

export function MapPage() {
  const listId = query.value.get('list');
  const list = state.lists.value.find((one) => one.id === listId);
  const [text, setText] = useState('');
  const [asList, setAsList] = useState(false);
  const [follow, setFollow] = useState(false);
  useEffect(followPosition, []);

  const meters = state.meters.value;
  const points = useMemo(
    () =>
      list
        ? pointsOfList(list, state.mine.value)
        : pointsOfAll(meters.values(), state.lists.value, state.pendingReadings.value),
    [list, meters, state.lists.value, state.mine.value],
  );
  const streets = useMemo(() => [...meters.values()], [meters]);
  const here = state.position.value?.place ?? null;
  const moving = useMemo(movers, [state.vans.value, state.position.value]);
  const open = (id: string) =>
    navigate(`/meters/${encodeURIComponent(id)}${list ? `?list=${encodeURIComponent(list.id)}` : ''}`);
  const matches = useMemo(
    () => (text.trim() || asList ? find(list?.tasks?.map((task) => task.meter) ?? streets, text) : []),
    [text, asList, list, streets, here],
  );

  return (
    <div class="map-page">
      <h1 class="sr-only" tabIndex={-1}>
        Map
      </h1>
      <div class="map-bar">
        <label class="search">
          <span class="sr-only">Search street or number</span>
          <Icon name="search" size={20} />
          <input
            type="search"
            placeholder="Street or number"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
            data-testid="search"
          />
        </label>
        <button type="button" class="float" aria-pressed={asList} onClick={() => setAsList(!asList)}>
          <Icon name={asList ? 'map' : 'lists'} size={20} />
          <span>{asList ? 'Map' : 'List'}</span>
        </button>
      </div>
      <MapView
        points={points}
        streetsOf={streets}
        movers={moving}
        follow={follow ? here : null}
        onPoint={open}
        onDrag={() => setFollow(false)}
        label="Map of meters"
      />
      {(text.trim() !== '' || asList) && (
        <Found key={text} meters={matches} list={list?.id ?? null} isWhole={asList} />
      )}
      <div class="map-foot">
        <span class="chip" data-testid="map-count">
          {list ? (
            <>
              {list.name} <Link to="/map">show all</Link>
            </>
          ) : (
            plural(points.length, 'meter')
          )}
        </span>
        <button
          type="button"
          class="float round"
          aria-label="Go to my position"
          aria-pressed={follow}
          disabled={!here}
          onClick={() => setFollow(true)}
        >
          <Icon name="here" />
        </button>
      </div>
    </div>
  );
}

function find(meters: readonly Meter[], text: string): Meter[] {
  const here = state.position.value?.place;
  if (!here) return found(meters, text);
  const far = new Map(
    meters.map((meter) => [meter, meter.place ? metresBetween(here, meter.place) : Infinity]),
  );
  const nearer = (a: Meter, b: Meter) => {
    const [toA, toB] = [far.get(a) ?? Infinity, far.get(b) ?? Infinity];
    return toA === toB ? 0 : toA - toB;
  };
  return found(meters, text, nearer);
}

function Found({ meters, list, isWhole }: { meters: Meter[]; list: string | null; isWhole: boolean }) {
  const here = state.position.value?.place;
  return (
    <section class={isWhole ? 'found whole' : 'found'} aria-label="Meters found">
      <List
        class="rows"
        testid="found"
        rows={meters}
        empty={{
          icon: 'search',
          title: 'No meter matches',
          hint: 'Type a street, a house number or a meter’s number.',
        }}
        page={PAGE}
        rowKey={({ id }) => id}
        row={(meter) => (
          <MeterLink meter={meter} list={list} about={[meterNumber(meter), far(meter, here)]} />
        )}
      />
    </section>
  );
}
