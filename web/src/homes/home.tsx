// One home: what is measured there now, curves over hours to months, its alerts and sensors, export.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { download, useAsked } from '../data/office';
import { dateTime, plural } from '../lib/format';
import * as app from '../state';
import type { Page as Items } from '../types';
import { List } from '../ui/list';
import { Choice, Empty, Exports, Note, Page } from '../ui/parts';
import { Link } from '../ui/router';
import { AlertList } from './alerts';
import { byQuantity, columns, duration, measured, quantityName } from './lib';
import { StateTag } from './overview';
import { Hindrance, Value } from './parts';
import { SeriesChart } from './series-chart';
import { alerts, homes, loadedAt, newest, sensors } from './state';
import type { Home, Rule, Series, SeriesPoint } from './types';

const HOUR_MS = 3_600_000;
const RANGES = { 1: 'Hour', 24: 'Day', 168: 'Week', 720: 'Month', 2160: '3 months' };
type Range = `${keyof typeof RANGES}`;
/** Curves of up to a day follow live values; not more often than this. */
const FOLLOW_MS = 5000;
const MOST_ROWS = 200;

export function HomePage({ id }: { id: string }) {
  const home = homes.value.get(id);
  if (!home) {
    return (
      <Page back="/">
        <Hindrance />
        {loadedAt.value !== null && <Empty icon="home" title="There is no such home" />}
      </Page>
    );
  }
  const own = alerts.value.filter((alert) => alert.home === id);
  return (
    <Page title={home.name} back="/" wide actions={<StateTag home={home} />}>
      <Hindrance />
      {home.street && home.street !== home.name && <p class="muted">{home.street}</p>}
      {home.note && <p>{home.note}</p>}
      {own.length > 0 && (
        <section class="stack" aria-labelledby="home-alerts">
          <h2 id="home-alerts">Alerts</h2>
          <AlertList rows={own} showsHome={false} />
        </section>
      )}
      <Now home={home} />
      {home.values.length > 0 && <Curves home={home} />}
      <Units home={home} />
    </Page>
  );
}

function Now({ home }: { home: Home }) {
  const devices = [...new Set(home.values.map((value) => value.device))].sort();
  return (
    <section class="now" aria-labelledby="now-head" data-testid="now">
      <h2 id="now-head">Now</h2>
      {devices.length === 0 && <Note tone="info">Nothing has been measured here yet.</Note>}
      <div class="device-grid">
        {devices.map((device) => (
          <div key={device} class="card">
            <h3>{sensors.value.find((sensor) => sensor.device === device)?.room ?? device}</h3>
            <div class="readings large">
              {home.values
                .filter((value) => value.device === device)
                .sort((a, b) => byQuantity(a.quantity, b.quantity))
                .map((value) => (
                  <Value key={value.quantity} value={value} named />
                ))}
            </div>
          </div>
        ))}
      </div>
    </section>
  );
}

function Curves({ home }: { home: Home }) {
  const choices = useMemo(
    () =>
      [...home.values]
        .sort((a, b) => byQuantity(a.quantity, b.quantity) || a.device.localeCompare(b.device))
        .map((value) => `${value.device}/${value.quantity}`),
    [home.values.length],
  );
  const [chosen, setChosen] = useState(choices[0] ?? '');
  const [range, setRange] = useState<Range>('24');
  const [device, quantity] = [chosen.slice(0, chosen.lastIndexOf('/')), chosen.split('/').at(-1) ?? ''];
  const span = useSpan(range, newest.value.get(chosen));
  const query = `device=${encodeURIComponent(device)}&quantity=${encodeURIComponent(quantity)}${spanQuery(span)}`;
  const { data, problem } = useAsked<Series>(`/series?${query}&step=auto`);
  const rules = useAsked<Items<Rule>>('/alert_rule?limit=1000');
  const limit = limitOf(rules.data?.items ?? [], home.id, quantity);
  const isShown = data?.device === device && data.quantity === quantity;
  const curve = useMemo(() => columns(isShown ? data.points : [], isRaw(data)), [data, isShown]);
  // Of the value and not of the curve, whose points may be averages of minutes.
  const last = home.values.find((value) => value.device === device && value.quantity === quantity);
  const silentSince = last?.stale ? last.at : null;
  const name = quantityName(quantity);
  return (
    <section class="card curves" aria-labelledby="curves-head">
      <h2 id="curves-head">Over time</h2>
      <div class="filters">
        <select
          aria-label="What is shown"
          value={chosen}
          onChange={(event) => setChosen(event.currentTarget.value)}
          data-testid="quantity"
        >
          {choices.map((key) => (
            <option key={key} value={key}>
              {optionText(key)}
            </option>
          ))}
        </select>
        <Choice label="Range" value={range} options={RANGES} onChange={setRange} />
      </div>
      {problem && <Note tone="warn">{problem}</Note>}
      <SeriesChart
        label={`${name} at ${home.name}, ${rangeName(range)}; the table below has the same values`}
        curve={curve}
        from={span.from}
        to={span.to}
        limit={limit}
        unit={isShown ? data.unit : (home.values.find((value) => value.quantity === quantity)?.unit ?? '')}
      />
      <p
        class="muted small-text"
        data-testid="curve-note"
        data-gaps={curve.gaps}
        data-silent={silentSince !== null}
      >
        {isShown ? curveNote(data, curve.gaps, limit) : 'Fetching …'}
        {silentSince && ` Nothing since ${dateTime(silentSince)}.`}
      </p>
      {isShown && data.points.length > 0 && <Values series={data} />}
      <div class="row">
        <Exports
          onExport={(kind) =>
            download(`/export/series.${kind}?${query}&step=raw`, `${device}-${quantity}.${kind}`)
          }
        />
      </div>
    </section>
  );
}

/** Whether every reading is a point. */
function isRaw(series: Series | null): boolean {
  return !series?.step_s;
}

interface Span {
  from: number;
  to: number;
}

function spanQuery({ from, to }: Span): string {
  return `&from=${new Date(from).toISOString()}&to=${new Date(to).toISOString()}`;
}

/** The stretch of time that is shown: up to now, and moved on when a new value came. */
function useSpan(range: Range, cameAt: string | undefined): Span {
  const make = () => ({ from: Date.now() - Number(range) * HOUR_MS, to: Date.now() });
  const [span, setSpan] = useState(make);
  useEffect(() => setSpan(make()), [range]);
  useEffect(() => {
    if (Number(range) > 24) return;
    if (Date.now() - span.to > FOLLOW_MS) setSpan(make());
  }, [cameAt, app.clock.value]);
  return span;
}

function optionText(key: string): string {
  const device = key.slice(0, key.lastIndexOf('/'));
  const room = sensors.value.find((sensor) => sensor.device === device)?.room;
  return `${quantityName(key.split('/').at(-1) ?? '')}, ${room ?? device}`;
}

function rangeName(range: Range): string {
  return RANGES[range].toLowerCase();
}

/** The lowest limit above which a rule raises an alert here. */
function limitOf(rules: readonly Rule[], home: string, quantity: string): number | null {
  const limits = rules.flatMap((rule) => {
    const concerns = rule.enabled && rule.quantity === quantity && (rule.home === null || rule.home === home);
    return concerns && rule.above !== null ? [rule.above] : [];
  });
  return limits.length > 0 ? Math.min(...limits) : null;
}

function curveNote(series: Series, gaps: number, limit: number | null): string {
  const each = series.step_s
    ? `Averages of ${duration(series.step_s)}; the band is lowest to highest.`
    : 'Single readings.';
  const missing = gaps > 0 ? ` ${plural(gaps, 'gap')} without readings.` : '';
  const line = limit === null ? '' : ` The dashed line is the alert limit, ${measured(limit, series.unit)}.`;
  return series.points.some((point) => point.value !== null)
    ? each + missing + line
    : 'Nothing was measured in this time.';
}

function Values({ series }: { series: Series }) {
  const [isOpen, setOpen] = useState(false);
  const rows = isOpen ? series.points.slice(-MOST_ROWS).reverse() : [];
  const show = (value: number | null) => (value === null ? 'no reading' : measured(value, series.unit));
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)} data-testid="values">
      <summary>Values as a table</summary>
      {isOpen && (
        <List<SeriesPoint>
          caption={`${quantityName(series.quantity)}, newest first`}
          rows={rows}
          rowKey={(point) => point.at}
          columns={[
            { name: 'Time', cell: (point) => dateTime(point.at) },
            { name: 'Value', number: true, cell: (point) => show(point.value) },
            { name: 'Lowest', number: true, cell: (point) => show(point.min ?? point.value) },
            { name: 'Highest', number: true, cell: (point) => show(point.max ?? point.value) },
          ]}
        />
      )}
      {series.points.length > MOST_ROWS && <p class="muted">The newest {MOST_ROWS}; the export has all.</p>}
    </details>
  );
}

function Units({ home }: { home: Home }) {
  const own = sensors.value.filter((sensor) => sensor.home === home.id);
  return (
    <section class="card" aria-labelledby="units-head">
      <h2 id="units-head">Sensors here</h2>
      <List
        class="plain-list"
        rows={own}
        empty="None. Assign one under Sensors."
        rowKey={({ device }) => device}
        row={({ device, room, model }) => (
          <span>
            <strong>{device}</strong>
            {room && <> · {room}</>}
            {model && <small class="muted"> · {model}</small>}
          </span>
        )}
      />
      <p>
        <Link to="/sensors">All sensors</Link>
      </p>
    </section>
  );
}
