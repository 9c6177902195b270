// An exchange of a meter as it is typed, checked before it is sent. The server checks again.

import { parseValue } from './plausibility';

export interface TypedExchange {
  /** What the field for a date and time has, in the browser's zone. */
  at: string;
  final: string;
  first: string;
  number: string;
  note: string;
}

/** The body of the request, or what is wrong. */
export function newExchange(typed: TypedExchange, id: string): { body: object } | { problem: string } {
  const at = new Date(typed.at);
  const [final, first] = [parseValue(typed.final), parseValue(typed.first)];
  if (Number.isNaN(at.getTime())) return { problem: 'Enter the day and time of the exchange.' };
  if (final === null || first === null) {
    return { problem: 'Enter both registers: digits and one decimal point only.' };
  }
  const [new_serial, note] = [typed.number, typed.note].map((text) => text.trim() || null);
  return { body: { id, at: at.toISOString(), final, first, new_serial, note } };
}

/** That moment as a field for a date and time has it, in the browser's zone. */
export function localMinute(at: Date): string {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}
