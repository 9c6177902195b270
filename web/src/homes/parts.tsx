// Small pieces of the screens of homes.

import { ApiError } from '../data/api';
import { ago } from '../lib/format';
import * as app from '../state';
import { Icon } from '../ui/icons';
import { Note, Tag } from '../ui/parts';
import { measured, quantityName, severityTone } from './lib';
import { load, loadedAt, problem } from './state';
import type { HomeValue, Severity } from './types';

export function RefreshButton() {
  return (
    <button type="button" class="icon-button" aria-label="Refresh" onClick={() => void load()}>
      <Icon name="refresh" />
    </button>
  );
}

/** What hinders, and how old what is shown is because of it. */
export function Hindrance() {
  if (!problem.value) return null;
  return (
    <Note tone="warn" role="status">
      {problem.value}{' '}
      {loadedAt.value && <>The values shown are from {ago(loadedAt.value, app.clock.value)}.</>}
    </Note>
  );
}

export function SeverityTag({ severity }: { severity: Severity }) {
  return <Tag tone={severityTone(severity)}>{severity === 'info' ? 'notice' : severity}</Tag>;
}

/** A value with its age; one that is too old says so in words. */
export function Value({ value, named }: { value: HomeValue; named: boolean }) {
  const { quantity, unit, at, stale } = value;
  return (
    <span class={stale ? 'reading stale' : 'reading'} data-testid={`value-${quantity}`} data-at={at}>
      {named && <span class="reading-name">{quantityName(quantity)}</span>}
      <strong>{measured(value.value, unit)}</strong>
      <small class="muted">
        {stale && <Tag tone="warn">stale</Tag>} {ago(at, app.clock.value)}
      </small>
    </span>
  );
}

/** Runs a change; what the server says against it is shown. True if it was done. */
export async function attempt(work: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    await work();
    app.say(done, 'good');
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    app.say(error.message, 'bad');
    return false;
  }
}
