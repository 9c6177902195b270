// An exchange of a meter: what is typed of it, and as the API takes it.

import type { Field } from '../ui/form';
import type { Values } from './fields';
import { noValue, parseValue } from './plausibility';

type Names = 'at' | 'final' | 'first' | 'number' | 'note';

export function exchangeFields(unit: string): Field<Names>[] {
  const register = { kind: 'decimal', required: 'Enter both registers.', check: noValue } as const;
  const required = 'Enter the day and time of the exchange.';
  return [
    { name: 'at', label: 'When', kind: 'datetime-local', required },
    { name: 'final', label: `Final value of the old meter, ${unit}`, ...register },
    { name: 'first', label: `First value of the new meter, ${unit}`, ...register },
    { name: 'number', label: 'Number of the new meter', api: 'new_serial', input: { maxLength: 200 } },
    { name: 'note', label: 'Note', input: { maxLength: 500 } },
  ];
}

/** The body of the request. */
export function newExchange(typed: Values<Names>, id: string): object {
  const { at, final, first, number, note } = typed;
  return {
    id,
    at: new Date(at).toISOString(),
    final: parseValue(final),
    first: parseValue(first),
    new_serial: number || null,
    note: note || null,
  };
}

/** That moment as a field for a date and time has it, in the browser's zone. */
export function localMinute(at: Date): string {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
