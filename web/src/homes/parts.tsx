// Small pieces of the screens of homes.

import { ago } from '../lib/format';
import * as app from '../state';
import { Note, RefreshButton, Tag } from '../ui/parts';
import { measured, quantityName, SEVERITIES, severityTone } from './lib';
import { homes, load, loadedAt, problem } from './state';
import type { HomeValue, Severity } from './types';

export function Refresh() {
  return <RefreshButton onClick={() => void load()} />;
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

const wordOf = (severity: Severity) => (severity === 'info' ? 'notice' : severity);
export const SEVERITY_OPTIONS = SEVERITIES.map((severity) => [severity, wordOf(severity)] as const);

export function SeverityTag({ severity }: { severity: Severity }) {
  return <Tag tone={severityTone(severity)}>{wordOf(severity)}</Tag>;
}

/** Homes to choose from, in the order of their names. */
export function homeOptions(): (readonly [string, string])[] {
  return [...homes.value.values()]
    .sort((a, b) => a.name.localeCompare(b.name, 'en', { numeric: true }))
    .map(({ id, name }) => [id, name] as const);
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
