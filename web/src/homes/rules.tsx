// When an alert is raised, and who is told besides those who look here.

import { useState } from 'preact/hooks';
import { ask, useAsked } from '../data/office';
import * as app from '../state';
import type { Page as Items } from '../types';
import { Icon } from '../ui/icons';
import { Dialog, Empty, Field, Note, Page, Tag } from '../ui/parts';
import { byQuantity, duration, measured, quantityName, SEVERITIES } from './lib';
import { numberOf } from './overview';
import { attempt, SeverityTag } from './parts';
import { homes, sensors } from './state';
import type { Rule, Severity, Webhook } from './types';

const MINUTE_S = 60;
const UNITS: Record<string, string> = {
  radon: 'Bq/m³',
  co2: 'ppm',
  co: 'ppm',
  temperature: '°C',
  humidity: '%',
  pressure: 'hPa',
  battery: '%',
};

export function Rules() {
  const { data, problem, again } = useAsked<Items<Rule>>('/alert_rule?limit=1000');
  const [edited, setEdited] = useState<Partial<Rule> | null>(null);
  return (
    <Page
      title="Rules"
      actions={
        app.mayManage.value && (
          <button type="button" class="small" onClick={() => setEdited({})} data-testid="new-rule">
            <Icon name="plus" size={18} /> Rule
          </button>
        )
      }
    >
      {problem && <Note tone="warn">{problem}</Note>}
      {data?.items.length === 0 && (
        <Empty icon="rules" title="No rules">
          Without rules nothing raises an alert.
        </Empty>
      )}
      <ul class="alerts" data-testid="rules">
        {data?.items.map((rule) => (
          <li key={rule.id} class="card alert">
            <RuleText rule={rule} />
            {app.mayManage.value && (
              <button type="button" class="small" onClick={() => setEdited(rule)}>
                Edit<span class="sr-only"> {rule.name}</span>
              </button>
            )}
          </li>
        ))}
      </ul>
      <Webhooks />
      {edited && (
        <EditRule
          rule={edited}
          onClose={() => setEdited(null)}
          onDone={() => {
            setEdited(null);
            again();
          }}
        />
      )}
    </Page>
  );
}

/** A rule as a sentence. */
function sentence(rule: Rule): string {
  const unit = UNITS[rule.quantity ?? ''] ?? null;
  const name = rule.quantity === null ? 'A sensor' : quantityName(rule.quantity);
  const parts: string[] = [];
  if (rule.above !== null) parts.push(`above ${measured(rule.above, unit)}`);
  if (rule.below !== null) parts.push(`below ${measured(rule.below, unit)}`);
  if (rule.silent_s !== null) parts.push(`without data for ${duration(rule.silent_s)}`);
  const over = rule.averaging_s > 0 ? `, averaged over ${duration(rule.averaging_s)},` : '';
  const held = rule.for_s > 0 ? ` for ${duration(rule.for_s)}` : '';
  const clear = rule.clear === null ? '' : `; clears at ${measured(rule.clear, unit)}`;
  return `${name}${over} ${parts.join(' or ')}${held}${clear}`;
}

function RuleText({ rule }: { rule: Rule }) {
  return (
    <div class="grow">
      <p class="row">
        <SeverityTag severity={rule.severity} />
        <strong>{rule.name}</strong>
        {!rule.enabled && <Tag>off</Tag>}
      </p>
      <p>{sentence(rule)}</p>
      <p class="muted small-text">
        {rule.home === null ? 'Every home' : (homes.value.get(rule.home)?.name ?? rule.home)}
        {rule.source && <> · {rule.source}</>}
      </p>
    </div>
  );
}

interface Form {
  name: string;
  quantity: string;
  home: string;
  severity: Severity;
  above: string;
  below: string;
  clear: string;
  forMin: string;
  averagingMin: string;
  silentMin: string;
  source: string;
  enabled: boolean;
}

function formOf(rule: Partial<Rule>): Form {
  const text = (value: number | null | undefined) => value?.toString() ?? '';
  const minutes = (value: number | null | undefined) => (value ? String(value / MINUTE_S) : '');
  return {
    name: rule.name ?? '',
    quantity: rule.quantity === null ? '' : (rule.quantity ?? 'radon'),
    home: rule.home ?? '',
    severity: rule.severity ?? 'warning',
    above: text(rule.above),
    below: text(rule.below),
    clear: text(rule.clear),
    forMin: minutes(rule.for_s),
    averagingMin: minutes(rule.averaging_s),
    silentMin: minutes(rule.silent_s),
    source: rule.source ?? '',
    enabled: rule.enabled ?? true,
  };
}

function jsonOf(form: Form) {
  const seconds = (text: string) => Math.round((numberOf(text) ?? 0) * MINUTE_S);
  return {
    name: form.name.trim(),
    quantity: form.quantity || null,
    home: form.home || null,
    severity: form.severity,
    above: numberOf(form.above),
    below: numberOf(form.below),
    clear: numberOf(form.clear),
    for_s: seconds(form.forMin),
    averaging_s: seconds(form.averagingMin),
    silent_s: seconds(form.silentMin) || null,
    source: form.source.trim() || null,
    enabled: form.enabled,
  };
}

function EditRule(props: { rule: Partial<Rule>; onClose: () => void; onDone: () => void }) {
  const { rule, onClose, onDone } = props;
  const [form, setForm] = useState(() => formOf(rule));
  const set = (change: Partial<Form>) => setForm({ ...form, ...change });
  const path = rule.id ? `/alert_rule/${encodeURIComponent(rule.id)}` : '/alert_rule';
  const save = async (event: Event) => {
    event.preventDefault();
    const request = { method: rule.id ? 'PATCH' : 'POST', json: jsonOf(form), ifMatch: rule.etag };
    if (await attempt(() => ask(path, request), 'Rule saved.')) onDone();
  };
  const remove = async () => {
    if (await attempt(() => ask(path, { method: 'DELETE', ifMatch: rule.etag }), 'Rule deleted.')) onDone();
  };
  return (
    <Dialog title={rule.id ? 'Change rule' : 'New rule'} onClose={onClose}>
      <form class="form" onSubmit={(event) => void save(event)} data-testid="rule-form">
        <WhatAndWhere form={form} set={set} />
        <Limits form={form} set={set} />
        <label class="check">
          <input
            type="checkbox"
            checked={form.enabled}
            onChange={(event) => set({ enabled: event.currentTarget.checked })}
          />
          The rule is on
        </label>
        <div class="dialog-actions">
          {rule.id && (
            <button type="button" class="quiet" onClick={() => void remove()}>
              Delete
            </button>
          )}
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Dialog>
  );
}

interface Part {
  form: Form;
  set: (change: Partial<Form>) => void;
}

function WhatAndWhere({ form, set }: Part) {
  const known = new Set([...Object.keys(UNITS), ...sensors.value.flatMap((sensor) => sensor.quantities)]);
  return (
    <>
      <Field label="Name" id="rule-name">
        <input
          id="rule-name"
          required
          maxLength={100}
          value={form.name}
          onInput={(event) => set({ name: event.currentTarget.value })}
        />
      </Field>
      <div class="form-grid">
        <Field label="What is measured" id="rule-quantity">
          <select
            id="rule-quantity"
            value={form.quantity}
            onChange={(event) => set({ quantity: event.currentTarget.value })}
          >
            <option value="">Any: whether data arrives</option>
            {[...known].sort(byQuantity).map((quantity) => (
              <option key={quantity} value={quantity}>
                {quantityName(quantity)}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Where" id="rule-home">
          <select
            id="rule-home"
            value={form.home}
            onChange={(event) => set({ home: event.currentTarget.value })}
          >
            <option value="">Every home</option>
            {[...homes.value.values()].map((home) => (
              <option key={home.id} value={home.id}>
                {home.name}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Severity" id="rule-severity">
          <select
            id="rule-severity"
            value={form.severity}
            onChange={(event) => set({ severity: event.currentTarget.value as Severity })}
          >
            {SEVERITIES.map((severity) => (
              <option key={severity} value={severity}>
                {severity === 'info' ? 'notice' : severity}
              </option>
            ))}
          </select>
        </Field>
      </div>
    </>
  );
}

function Limits({ form, set }: Part) {
  const unit = UNITS[form.quantity];
  const fields: [keyof Form, string, string][] = [
    ['above', `Above${unit ? `, ${unit}` : ''}`, ''],
    ['below', `Below${unit ? `, ${unit}` : ''}`, ''],
    [
      'clear',
      `Clears at${unit ? `, ${unit}` : ''}`,
      'At a distance from the limit, so that the alert does not flicker.',
    ],
    ['averagingMin', 'Averaged over, minutes', ''],
    ['forMin', 'For at least, minutes', ''],
    ['silentMin', 'Or without data for, minutes', ''],
  ];
  return (
    <div class="form-grid">
      {fields.map(([key, label, hint]) => (
        <Field key={key} label={label} id={`rule-${key}`} hint={hint || undefined}>
          <input
            id={`rule-${key}`}
            type="number"
            step="any"
            min={key.endsWith('Min') ? 0 : undefined}
            value={String(form[key])}
            onInput={(event) => set({ [key]: event.currentTarget.value })}
            aria-describedby={hint ? `rule-${key}-hint` : undefined}
          />
        </Field>
      ))}
    </div>
  );
}

function Webhooks() {
  const { data, again } = useAsked<Items<Webhook>>('/webhook');
  const [url, setUrl] = useState('');
  const [least, setLeast] = useState<Severity>('warning');
  const [secret, setSecret] = useState('');
  const add = async (event: Event) => {
    event.preventDefault();
    const json = { url: url.trim(), least_severity: least, secret };
    if (await attempt(() => ask('/webhook', { method: 'POST', json }), 'Address added.')) {
      setUrl('');
      setSecret('');
      again();
    }
  };
  const remove = async (hook: Webhook) => {
    const path = `/webhook/${encodeURIComponent(hook.id)}`;
    if (await attempt(() => ask(path, { method: 'DELETE' }), 'Address removed.')) again();
  };
  if (!app.mayManage.value) return null;
  return (
    <section class="card form" aria-labelledby="hooks-head">
      <h2 id="hooks-head">Notify other systems</h2>
      <p class="muted">Each alert is sent to these addresses when it is raised, acknowledged and cleared.</p>
      <ul class="plain-list">
        {data?.items.map((hook) => (
          <li key={hook.id} class="hook">
            <code class="grow">{hook.url}</code>
            <SeverityTag severity={hook.least_severity} />
            <button type="button" class="small" onClick={() => void remove(hook)}>
              Remove<span class="sr-only"> {hook.url}</span>
            </button>
          </li>
        ))}
      </ul>
      <form class="form-grid" onSubmit={(event) => void add(event)}>
        <Field label="Address (https)" id="hook-url">
          <input
            id="hook-url"
            type="url"
            required
            value={url}
            onInput={(event) => setUrl(event.currentTarget.value)}
          />
        </Field>
        <Field label="From severity" id="hook-severity">
          <select
            id="hook-severity"
            value={least}
            onChange={(event) => setLeast(event.currentTarget.value as Severity)}
          >
            {SEVERITIES.map((severity) => (
              <option key={severity} value={severity}>
                {severity === 'info' ? 'notice' : severity}
              </option>
            ))}
          </select>
        </Field>
        <Field label="Secret for the signature" id="hook-secret">
          <input
            id="hook-secret"
            type="password"
            required
            minLength={8}
            autocomplete="off"
            value={secret}
            onInput={(event) => setSecret(event.currentTarget.value)}
          />
        </Field>
        <button type="submit">Add address</button>
      </form>
    </section>
  );
}
