// All homes: how they are on figures, on the map and as a list that says the same, those that need somebody first.

import { useMemo, useState } from 'preact/hooks';
import { ask } from '../data/office';
import { amount, plural } from '../lib/format';
import * as app from '../state';
import { Icon, type IconName } from '../ui/icons';
import { MapView } from '../ui/map';
import { Dialog, Empty, Field, Page, Tag } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { byNeed, pointsOfHomes, severityTone, stateWord } from './lib';
import { attempt, Hindrance, RefreshButton, Value } from './parts';
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
      title="Homes"
      wide
      actions={
        <>
          {add}
          <RefreshButton />
        </>
      }
    >
      <Hindrance />
      <div class="tiles" data-testid="overview">
        <Tile to="/" icon="home" value={all.length} name="homes" />
        <Tile
          to="/alerts"
          icon="warn"
          value={raised.value.length}
          name="alerts not acknowledged"
          tone={raised.value.length > 0 ? 'bad' : ''}
        />
        <Tile
          to="/sensors"
          icon="offline"
          value={silent}
          name="silent sensors"
          tone={silent > 0 ? 'warn' : ''}
        />
        <Tile
          to="/sensors"
          icon="devices"
          value={loose}
          name="sensors without a home"
          tone={loose > 0 ? 'warn' : ''}
        />
      </div>
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
            <ul class="home-list" data-testid="homes">
              {found.map((home) => (
                <HomeRow key={home.id} home={home} />
              ))}
            </ul>
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
    <li data-testid="home" data-home={home.id}>
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
    </li>
  );
}

export function StateTag({ home }: { home: Home }) {
  const word = stateWord(home);
  const tone = word === 'silent' || word === 'no values' ? 'neutral' : severityTone(home.worst);
  return <Tag tone={tone}>{word}</Tag>;
}

export function Tile(props: { to: string; icon: IconName; value: number; name: string; tone?: string }) {
  const { to, icon, value, name, tone } = props;
  return (
    <Link to={to} class={`tile ${tone ?? ''}`}>
      <Icon name={icon} size={26} />
      <span>
        <strong>{amount(value)}</strong>
        <small>{name}</small>
      </span>
    </Link>
  );
}

/** A number of a field, or null if it is empty. */
export function numberOf(text: string): number | null {
  return text.trim() === '' ? null : Number(text);
}

function NewHome({ onClose }: { onClose: () => void }) {
  const [name, setName] = useState('');
  const [street, setStreet] = useState('');
  const [lat, setLat] = useState('');
  const [lon, setLon] = useState('');
  const save = async (event: Event) => {
    event.preventDefault();
    const [north, east] = [numberOf(lat), numberOf(lon)];
    const place = north === null || east === null ? null : { lat: north, lon: east };
    const json = { name: name.trim(), street: street.trim() || null, place };
    if (await attempt(() => ask('/home', { method: 'POST', json }), 'The home was added.')) {
      onClose();
      await reload();
    }
  };
  return (
    <Dialog title="New home" onClose={onClose}>
      <form class="form" onSubmit={(event) => void save(event)}>
        <Field label="Name" id="home-name">
          <input
            id="home-name"
            required
            maxLength={100}
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        </Field>
        <Field label="Street" id="home-street">
          <input
            id="home-street"
            maxLength={200}
            value={street}
            onInput={(event) => setStreet(event.currentTarget.value)}
          />
        </Field>
        <div class="form-grid">
          <Field label="Latitude" id="home-lat">
            <input
              id="home-lat"
              type="number"
              step="any"
              min={-90}
              max={90}
              required={lon !== ''}
              value={lat}
              onInput={(event) => setLat(event.currentTarget.value)}
            />
          </Field>
          <Field label="Longitude" id="home-lon">
            <input
              id="home-lon"
              type="number"
              step="any"
              min={-180}
              max={180}
              required={lat !== ''}
              value={lon}
              onInput={(event) => setLon(event.currentTarget.value)}
            />
          </Field>
        </div>
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Add
          </button>
        </div>
      </form>
    </Dialog>
  );
}
