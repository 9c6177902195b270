// All homes: how they are on figures, on the map and as a list that says the same, those that need somebody first.

import { useMemo, useState } from 'preact/hooks';
import { ask } from '../data/office';
import { numberOf } from '../lib/fields';
import { plural } from '../lib/format';
import * as app from '../state';
import { DialogForm } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { MapView } from '../ui/map';
import { Empty, Page, Tag, Tiles } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { byNeed, pointsOfHomes, severityTone, stateWord } from './lib';
import { Hindrance, Refresh, Value } from './parts';
import { homes, loadedAt, raised, reload, sensors } from './state';
import type { Home } from './types';

const NOTHING: never[] = [];
const WORDS = { many: 'homes', done: 'well', bad: 'critical' };

export function Homes() {
  const [text, setText] = useState('');
  const [adding, setAdding] = useState(false);
  const all = useMemo(() => [...homes.value.values()].sort(byNeed), [homes.value]);
  const found = all.filter((home) => matches(home, text));
  const points = useMemo(() => pointsOfHomes(all), [all]);
  const silent = sensors.value.filter((sensor) => sensor.state === 'silent').length;
  const loose = sensors.value.filter((sensor) => sensor.home === null).length;
  const add = app.mayManage.value && (
    <button type="button" class="small" onClick={() => setAdding(true)} data-testid="new-home">
      <Icon name="plus" size={18} /> Home
    </button>
  );
  return (
    <Page
      wide
      actions={
        <>
          {add}
          <Refresh />
        </>
      }
    >
      <Hindrance />
      <Tiles
        testid="overview"
        tiles={[
          { to: '/', icon: 'home', value: all.length, name: 'homes' },
          {
            to: '/alerts',
            icon: 'warn',
            value: raised.value.length,
            name: 'alerts not acknowledged',
            alarm: 'bad',
          },
          { to: '/sensors', icon: 'offline', value: silent, name: 'silent sensors', alarm: 'warn' },
          { to: '/sensors', icon: 'devices', value: loose, name: 'sensors without a home', alarm: 'warn' },
        ]}
      />
      {loadedAt.value !== null && all.length === 0 && (
        <Empty icon="home" title="No homes yet">
          Add the first; sensors that send appear by themselves under Sensors.
        </Empty>
      )}
      {all.length > 0 && (
        <div class="split homes-split">
          <section class="card" aria-labelledby="homes-head">
            <div class="row">
              <h2 id="homes-head" class="grow">
                {plural(found.length, 'home')}
              </h2>
              <label>
                <span class="sr-only">Search name or street</span>
                <input
                  type="search"
                  class="small-input"
                  placeholder="Name or street"
                  value={text}
                  onInput={(event) => setText(event.currentTarget.value)}
                  data-testid="search"
                />
              </label>
            </div>
            <List
              class="home-list"
              testid="homes"
              rows={found}
              empty="No home has a name or street like this."
              rowKey={({ id }) => id}
              row={(home) => <HomeRow home={home} />}
            />
          </section>
          {points.length > 0 && (
            <div class="card map-card">
              <MapView
                points={points}
                streetsOf={NOTHING}
                movers={NOTHING}
                follow={null}
                onPoint={(id) => navigate(`/homes/${encodeURIComponent(id)}`)}
                label="Map of homes"
                words={WORDS}
              />
            </div>
          )}
        </div>
      )}
      {adding && <NewHome onClose={() => setAdding(false)} />}
    </Page>
  );
}

function matches(home: Home, text: string): boolean {
  const about = `${home.name} ${home.street ?? ''} ${home.id}`.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => about.includes(word));
}

function HomeRow({ home }: { home: Home }) {
  return (
    <div data-testid="home" data-home={home.id}>
      <Link to={`/homes/${encodeURIComponent(home.id)}`} class="home-link">
        <span class="row">
          <strong class="grow">{home.name}</strong>
          <StateTag home={home} />
        </span>
        {home.street && home.street !== home.name && <small class="muted">{home.street}</small>}
        <span class="readings">
          {home.values.map((value) => (
            <Value key={`${value.device}/${value.quantity}`} value={value} named />
          ))}
        </span>
      </Link>
    </div>
  );
}

export function StateTag({ home }: { home: Home }) {
  const word = stateWord(home);
  const tone = word === 'silent' || word === 'no values' ? 'neutral' : severityTone(home.worst);
  return <Tag tone={tone}>{word}</Tag>;
}

/** Both or none: half a place is none. */
function half(text: string, other: string): string | null {
  return text === '' && other !== '' ? 'Enter both, or none.' : null;
}

function NewHome({ onClose }: { onClose: () => void }) {
  return (
    <DialogForm
      title="New home"
      onClose={onClose}
      id="home"
      fields={[
        { name: 'name', label: 'Name', required: true, input: { maxLength: 100 } },
        { name: 'street', label: 'Street', input: { maxLength: 200 } },
        {
          name: 'lat',
          label: 'Latitude',
          kind: 'number',
          min: -90,
          max: 90,
          api: 'place.lat',
          check: (text, { lon }) => half(text, lon),
        },
        {
          name: 'lon',
          label: 'Longitude',
          kind: 'number',
          min: -180,
          max: 180,
          api: 'place.lon',
          check: (text, { lat }) => half(text, lat),
        },
      ]}
      submit="Add"
      done="The home was added."
      send={async ({ name, street, lat, lon }) => {
        const [north, east] = [numberOf(lat), numberOf(lon)];
        const place = north === null || east === null ? null : { lat: north, lon: east };
        await ask('/home', { method: 'POST', json: { name, street: street || null, place } });
        void reload();
      }}
    />
  );
}
