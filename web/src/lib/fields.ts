// What forms and their fields know without a browser: which values can be sent, and at which field an answer of the
// server belongs. Pure.

import type { ApiError } from '../data/api';
import { amount } from './format';

/** `code` is kept letter for letter, such as a topic; other text loses spaces at its ends. */
export type Kind =
  | 'text'
  | 'code'
  | 'decimal'
  | 'number'
  | 'password'
  | 'search'
  | 'url'
  | 'date'
  | 'datetime-local'
  | 'textarea'
  | 'checkbox'
  | 'choice';

/** As fields have them; a checkbox that is off is empty. */
export type Values<K extends string> = Readonly<Record<K, string>>;
export type Faults<K extends string> = Partial<Record<K, string>>;

export interface Rules<K extends string> {
  name: K;
  kind?: Kind;
  /** Optionally with what is said where it is missing. */
  required?: boolean | string;
  min?: number;
  max?: number;
  minLength?: number;
  /** What is wrong with a value that is there, if anything. */
  check?: (value: string, values: Values<K>) => string | null | undefined;
  /** The API's name, if it is another one. */
  api?: string;
}

export function trimmed<K extends string>(fields: readonly Rules<K>[], values: Values<K>): Values<K> {
  const isExact = (name: K) =>
    ['code', 'password'].includes(fields.find((one) => one.name === name)?.kind ?? '');
  const entries = Object.entries<string>(values);
  return Object.fromEntries(
    entries.map(([name, value]) => [name, isExact(name as K) ? value : value.trim()]),
  ) as Values<K>;
}

/** Faults in the order of the fields; `isNoNumber` is true of a field that the browser shows as empty because it is no number. */
export function validate<K extends string>(
  fields: readonly Rules<K>[],
  values: Values<K>,
  isNoNumber: (name: K) => boolean = () => false,
): Faults<K> {
  const faults: Faults<K> = {};
  for (const field of fields) {
    const { name, kind, check } = field;
    const value = values[name];
    const isBad = kind === 'number' && isNoNumber(name);
    const fault = (isBad ? 'Enter a number.' : faultOf(field, value)) ?? check?.(value, values);
    if (fault) faults[name] = fault;
  }
  return faults;
}

function faultOf(field: Rules<string>, value: string): string | null {
  const { kind, required, minLength = 0, min = -Infinity, max = Infinity } = field;
  if (value === '') return required ? (required === true ? 'Fill in this field.' : required) : null;
  if (value.length < minLength) return `Enter at least ${minLength} characters.`;
  if (kind === 'url' && !URL.canParse(value)) return 'Enter a whole address, such as https://example.com/.';
  if (kind !== 'number') return null;
  const number = Number(value);
  if (!Number.isFinite(number)) return 'Enter a number.';
  if (number < min) return `Enter at least ${amount(min)}.`;
  return number > max ? `Enter at most ${amount(max)}.` : null;
}

/** What the server said of fields, at those fields, and the rest for all of the form. */
export function placeProblem<K extends string>(
  error: ApiError,
  fields: readonly Rules<K>[],
): { faults: Faults<K>; rest: string | null } {
  const faults: Faults<K> = {};
  let isPlaced = error.errors.length > 0;
  for (const { field: path, detail } of error.errors) {
    const isOf = ({ api, name }: Rules<K>) => {
      const known = api ?? name;
      return path === known || path?.startsWith(`${known}.`) || path?.startsWith(`${known}[`);
    };
    const field = fields.find(isOf);
    if (field && detail) faults[field.name] = detail.charAt(0).toUpperCase() + detail.slice(1);
    else isPlaced = false;
  }
  if (isPlaced) return { faults, rest: null };
  const isStale = error.status === 412;
  return {
    faults,
    rest: isStale
      ? 'Somebody else has changed this: close this window and check what it is now.'
      : error.message,
  };
}

/** A number of a field, or null if it is empty. */
export function numberOf(text: string): number | null {
  return text.trim() === '' ? null : Number(text);
}
