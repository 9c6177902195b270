// Numbers, times and names as people read them: in the notation of the browser's language, one for all screens;
// times in the reader's own zone.

import type { Medium, Meter } from '../types';

const MEDIA: Record<Medium, string> = {
  water: 'Water',
  warm_water: 'Warm water',
  heat: 'Heat',
  gas: 'Gas',
  electricity: 'Electricity',
  heat_cost: 'Heat cost allocator',
  other: 'Other',
};

/** Whose notation: the browser's. */
const LANGUAGE = typeof navigator === 'undefined' ? undefined : navigator.language;

const made = new Map<string, Intl.NumberFormat | Intl.DateTimeFormat>();

/** Formats are costly to make and cheap to use. */
function kept<T extends Intl.NumberFormat | Intl.DateTimeFormat>(key: string, make: () => T): T {
  const known = made.get(key) ?? make();
  made.set(key, known);
  return known as T;
}

export function numbers(options: Intl.NumberFormatOptions = {}): (value: number) => string {
  const format = kept(`n${JSON.stringify(options)}`, () => new Intl.NumberFormat(LANGUAGE, options));
  return (value) => format.format(value);
}

export function times(options: Intl.DateTimeFormatOptions): (at: number) => string {
  const format = kept(`t${JSON.stringify(options)}`, () => new Intl.DateTimeFormat(LANGUAGE, options));
  return (at) => format.format(at);
}

const UNITS: Record<string, string> = { m3: 'm³', 'm3/h': 'm³/h' };

export function mediumName(medium: string | null | undefined): string {
  return MEDIA[medium as Medium] ?? (medium ? medium.replaceAll('_', ' ') : 'Unknown');
}

export function unitName(unit: string): string {
  return UNITS[unit] ?? unit;
}

export function quantity(value: number, unit: string): string {
  return `${decimal(value)} ${unitName(unit)}`;
}

export function decimal(value: number, digits = 3): string {
  return numbers({ maximumFractionDigits: digits })(value);
}

/** How many there are. */
export function amount(count: number): string {
  return numbers()(count);
}

/** `12 s ago`, `5 min ago`, `3 h ago`, then the date. */
export function ago(at: string | number, now: number): string {
  const then = typeof at === 'number' ? at : Date.parse(at);
  if (!Number.isFinite(then)) return 'unknown';
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 5) return 'just now';
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return dateTime(then);
}

export function dateTime(at: string | number): string {
  const show = times({ day: 'numeric', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit' });
  return show(new Date(at).getTime());
}

export function date(at: string | number): string {
  return times({ day: 'numeric', month: 'short', year: 'numeric' })(new Date(at).getTime());
}

export function distance(metres: number): string {
  return metres < 1000 ? `${Math.round(metres)} m` : `${decimal(metres / 1000, 1)} km`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${amount(count)} ${count === 1 ? one : many}`;
}

export function meterTitle(meter: Pick<Meter, 'street' | 'serial' | 'id'>): string {
  return meter.street || meterNumber(meter);
}

export function meterNumber(meter: Pick<Meter, 'serial' | 'id'>): string {
  return meter.serial ? `No. ${meter.serial}` : meter.id;
}

export function percent(done: number, total: number): number {
  return total === 0 ? 0 : Math.floor((100 * done) / total);
}

/** 0 to 4 bars. -55 dBm is beside the meter, -105 dBm is the edge of hearing. */
export function signalBars(dbm: number | null | undefined): number {
  if (dbm === null || dbm === undefined) return 0;
  return Math.max(0, Math.min(4, Math.ceil((dbm + 105) / 12.5)));
}
