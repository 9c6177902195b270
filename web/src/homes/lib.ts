// Homes in words and order, and gaps in curves. Pure.

import { decimal } from '../lib/format';
import type { Point } from '../ui/leaflet-map';
import type { Tone } from '../ui/parts';
import type { Alert, Home, HomeValue, LiveValue, SeriesPoint, Severity, Worst } from './types';

const NAMES: Record<string, string> = {
  radon: 'Radon',
  co2: 'Carbon dioxide',
  co: 'Carbon monoxide',
  temperature: 'Temperature',
  humidity: 'Humidity',
  pressure: 'Air pressure',
  battery: 'Battery',
  illuminance: 'Light',
};
/** Known ones first, in this order. */
const ORDER = Object.keys(NAMES);
const RANK: Record<Worst, number> = { critical: 0, warning: 1, info: 2, ok: 3 };
const TONES: Record<Worst, Tone> = { critical: 'bad', warning: 'warn', info: 'info', ok: 'good' };
const KINDS: Record<Worst, string> = { critical: 'bad', warning: 'warn', info: 'open', ok: 'read' };

export const SEVERITIES: readonly Severity[] = ['info', 'warning', 'critical'];

export function quantityName(quantity: string): string {
  const plain = quantity.replaceAll('_', ' ');
  return NAMES[quantity] ?? plain.charAt(0).toUpperCase() + plain.slice(1);
}

export function byQuantity(a: string, b: string): number {
  const place = (quantity: string) => (ORDER.includes(quantity) ? ORDER.indexOf(quantity) : ORDER.length);
  return place(a) - place(b) || a.localeCompare(b);
}

/** `21.5 °C`, `640 ppm`: as many digits as such sensors are worth. */
export function measured(value: number, unit: string | null): string {
  const digits = Math.abs(value) >= 100 ? 0 : 1;
  const text = decimal(value, digits);
  return unit ? `${text} ${unit}` : text;
}

export function severityTone(severity: Worst): Tone {
  return TONES[severity];
}

export function stateWord(home: Pick<Home, 'worst' | 'values'>): string {
  if (home.worst !== 'ok') return { info: 'notice', warning: 'warning', critical: 'critical' }[home.worst];
  if (home.values.length === 0) return 'no values';
  return home.values.every((value) => value.stale) ? 'silent' : 'ok';
}

/** Those that need somebody first; then by name. */
export function byNeed(a: Home, b: Home): number {
  return RANK[a.worst] - RANK[b.worst] || a.name.localeCompare(b.name, 'en', { numeric: true });
}

export function pointsOfHomes(homes: Iterable<Home>): Point[] {
  return [...homes].flatMap((home) => {
    if (!home.place) return [];
    const word = stateWord(home);
    const kind = word === 'silent' || word === 'no values' ? 'plain' : KINDS[home.worst];
    return [{ id: home.id, place: home.place, kind, label: `${home.name}, ${word}` }];
  });
}

/** A home with a value that just came; the same object if it is older than what is known. */
export function withValue(home: Home, live: LiveValue): Home {
  const isSame = (value: HomeValue) => value.device === live.device && value.quantity === live.quantity;
  const known = home.values.find(isSame);
  if (known && Date.parse(known.at) > Date.parse(live.at)) return home;
  const { device, quantity, value, unit, at } = live;
  const next = { device, quantity, value, unit, at, stale: false };
  const values = known
    ? home.values.map((one) => (isSame(one) ? next : one))
    : [...home.values, next].sort((a, b) => byQuantity(a.quantity, b.quantity));
  return { ...home, values };
}

/** The alerts with one that came: new, changed, or over. */
export function withAlert(alerts: readonly Alert[], alert: Alert): Alert[] {
  const others = alerts.filter((one) => one.id !== alert.id);
  return alert.state === 'cleared' ? others : sortAlerts([...others, alert]);
}

/** Homes as their open alerts make them; the same objects where nothing has changed. */
export function withStates(
  homes: ReadonlyMap<string, Home>,
  alerts: readonly Alert[],
): ReadonlyMap<string, Home> {
  const worst = new Map<string | null, Worst>();
  const counts = new Map<string | null, number>();
  for (const { home, severity } of alerts) {
    const known = worst.get(home) ?? 'ok';
    worst.set(home, RANK[severity] < RANK[known] ? severity : known);
    counts.set(home, (counts.get(home) ?? 0) + 1);
  }
  const entries = [...homes].map(([id, home]) => {
    const now = { worst: worst.get(id) ?? 'ok', alerts: counts.get(id) ?? 0 };
    const isSame = home.worst === now.worst && home.alerts === now.alerts;
    return [id, isSame ? home : { ...home, ...now }] as const;
  });
  return new Map(entries);
}

export function sortAlerts(alerts: readonly Alert[]): Alert[] {
  return [...alerts].sort(
    (a, b) =>
      Number(a.state === 'acknowledged') - Number(b.state === 'acknowledged') ||
      RANK[a.severity] - RANK[b.severity] ||
      b.raised_at.localeCompare(a.raised_at),
  );
}

export type Cell = number | null;

export interface Columns {
  /** Seconds since 1970. */
  times: number[];
  values: Cell[];
  low: Cell[];
  high: Cell[];
  /** How many stretches between readings have none. */
  gaps: number;
}

/** How much longer than the distances beside it one may be before it is a gap. */
const GAP = 2.5;

/** Whether so long without a value is a gap: sensors measure as often as around it, be it seconds or half hours. */
function isGap(
  distance: number,
  before: number | undefined,
  after: number | undefined,
  step: number,
): boolean {
  return distance > GAP * (Math.max(before ?? 0, after ?? 0) || step);
}

/** Points as columns for a chart. Values further apart than those around them get an empty point between them, or the
 * curve would bridge the gap; steps between values that are always that far apart are left out, or there would be no
 * curve. */
export function columns(points: readonly SeriesPoint[], isRaw: boolean): Columns {
  const times = points.map((point) => Date.parse(point.at) / 1000);
  const known = [...points.keys()].filter((at) => points[at]?.value !== null);
  const distances = known.slice(1).map((at, place) => (times[at] ?? 0) - (times[known[place] ?? 0] ?? 0));
  const step = isRaw ? (distances[0] ?? 0) : (times[1] ?? 0) - (times[0] ?? 0);
  const all: Columns = { times: [], values: [], low: [], high: [], gaps: 0 };
  const push = (time: number, point: SeriesPoint | null) => {
    all.times.push(time);
    all.values.push(point?.value ?? null);
    all.low.push(point?.min ?? point?.value ?? null);
    all.high.push(point?.max ?? point?.value ?? null);
  };
  const empty = (from: number, to: number) => {
    for (let at = from; at < to; at += 1) push(times[at] ?? 0, null);
  };
  empty(0, known[0] ?? points.length);
  for (const [place, at] of known.entries()) {
    push(times[at] ?? 0, points[at] ?? null);
    const next = known[place + 1];
    const distance = distances[place];
    if (next === undefined || distance === undefined) continue;
    if (!isGap(distance, distances[place - 1], distances[place + 1], step)) continue;
    all.gaps += 1;
    if (next > at + 1) empty(at + 1, next);
    else push((times[at] ?? 0) + (distances[place - 1] ?? distance / 2), null);
  }
  empty((known.at(-1) ?? points.length) + 1, points.length);
  return all;
}

export function duration(seconds: number): string {
  const parts: [number, string][] = [
    [86_400, 'd'],
    [3600, 'h'],
    [60, 'min'],
  ];
  for (const [size, name] of parts)
    if (seconds >= size && seconds % size === 0) return `${seconds / size} ${name}`;
  return `${seconds} s`;
}
