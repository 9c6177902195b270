// When an alert is raised, and who is told besides those who look here.

import { useState } from 'preact/hooks';
import type { Request } from '../data/api';
import { attempt } from '../data/attempt';
import { ask, useAsked } from '../data/office';
import { numberOf, type Values } from '../lib/fields';
import * as app from '../state';
import type { Page as Items } from '../types';
import { DialogForm, Form, type Field } from '../ui/form';
import { Icon } from '../ui/icons';
import { List } from '../ui/list';
import { Page, Tag } from '../ui/parts';
import { byQuantity, duration, measured, quantityName } from './lib';
import { homeOptions, SEVERITY_OPTIONS, SeverityTag } from './parts';
import { homes, sensors } from './state';
import type { Rule, Webhook } from './types';

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
  const rules = data?.items;
  const [edited, setEdited] = useState<Partial<Rule> | null>(null);
  return (
    <Page
      actions={
        app.mayManage.value && (
          <button type="button" class="small" onClick={() => setEdited({})} data-testid="new-rule">
            <Icon name="plus" size={18} /> Rule
          </button>
        )
      }
    >
      <List
        class="alerts"
        testid="rules"
        rows={rules}
        problem={problem}
        again={again}
        empty={{
          icon: 'rules',
          title: 'No rules',
          hint: `Without rules nothing raises an alert${app.mayManage.value ? ': add one' : ''}.`,
        }}
        rowKey={({ id }) => id}
        rowClass="card alert"
        row={(rule) => (
          <>
            <RuleText rule={rule} />
            {app.mayManage.value && (
              <button type="button" class="small" onClick={() => setEdited(rule)}>
                Edit<span class="sr-only"> {rule.name}</span>
              </button>
            )}
          </>
        )}
      />
      <Webhooks />
      {edited && <EditRule rule={edited} onClose={() => setEdited(null)} onDone={again} />}
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

type Names = keyof ReturnType<typeof valuesOf>;

function valuesOf(rule: Partial<Rule>) {
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
    enabled: rule.enabled === false ? '' : 'on',
  };
}

function jsonOf(values: Values<Names>, { source = null }: Partial<Rule>) {
  const seconds = (text: string) => Math.round((numberOf(text) ?? 0) * MINUTE_S);
  return {
    name: values.name,
    quantity: values.quantity || null,
    home: values.home || null,
    severity: values.severity,
    above: numberOf(values.above),
    below: numberOf(values.below),
    clear: numberOf(values.clear),
    for_s: seconds(values.forMin),
    averaging_s: seconds(values.averagingMin),
    silent_s: seconds(values.silentMin) || null,
    source,
    enabled: values.enabled !== '',
  };
}

function fieldsOf({ quantity }: Values<Names>): Field<Names>[] {
  const known = new Set([...Object.keys(UNITS), ...sensors.value.flatMap((sensor) => sensor.quantities)]);
  const quantities = [...known].sort(byQuantity).map((one) => [one, quantityName(one)] as const);
  const unit = UNITS[quantity] ? `, ${UNITS[quantity]}` : '';
  const hint = 'At a distance from the limit, so that the alert does not flicker.';
  const minutes = { kind: 'number', min: 0 } as const;
  return [
    { name: 'name', label: 'Name', required: true, input: { maxLength: 100 } },
    {
      name: 'quantity',
      label: 'What is measured',
      options: [['', 'Any: whether data arrives'], ...quantities],
    },
    { name: 'home', label: 'Where', options: [['', 'Every home'], ...homeOptions()] },
    { name: 'severity', label: 'Severity', options: SEVERITY_OPTIONS },
    { name: 'above', label: `Above${unit}`, kind: 'number' },
    { name: 'below', label: `Below${unit}`, kind: 'number' },
    { name: 'clear', label: `Clears at${unit}`, kind: 'number', hint },
    { name: 'averagingMin', label: 'Averaged over, minutes', api: 'averaging_s', ...minutes },
    { name: 'forMin', label: 'For at least, minutes', api: 'for_s', ...minutes },
    { name: 'silentMin', label: 'Or without data for, minutes', api: 'silent_s', ...minutes },
    { name: 'enabled', label: 'The rule is on', kind: 'checkbox' },
  ];
}

function EditRule({
  rule,
  onClose,
  onDone,
}: {
  rule: Partial<Rule>;
  onClose: () => void;
  onDone: () => void;
}) {
  const path = rule.id ? `/alert_rule/${encodeURIComponent(rule.id)}` : '/alert_rule';
  const send = async (request: Request) => {
    await ask(path, { ...request, ifMatch: rule.etag });
    onDone();
  };
  const remove = {
    label: 'Delete',
    checks: [],
    done: 'Rule deleted.',
    send: () => send({ method: 'DELETE' }),
  };
  return (
    <DialogForm
      title={rule.id ? 'Change rule' : 'New rule'}
      onClose={onClose}
      id="rule"
      testid="rule-form"
      fields={fieldsOf}
      initial={valuesOf(rule)}
      submit="Save"
      done="Rule saved."
      send={(values) => send({ method: rule.id ? 'PATCH' : 'POST', json: jsonOf(values, rule) })}
      others={rule.id ? [remove] : []}
    />
  );
}

function Webhooks() {
  const { data, problem, again } = useAsked<Items<Webhook>>(app.mayManage.value ? '/webhook' : null);
  const remove = async (hook: Webhook) => {
    const path = `/webhook/${encodeURIComponent(hook.id)}`;
    if (await attempt(() => ask(path, { method: 'DELETE' }), 'Address removed.')) again();
  };
  if (!app.mayManage.value) return null;
  return (
    <section class="card form" aria-labelledby="hooks-head">
      <h2 id="hooks-head">Notify other systems</h2>
      <p class="muted">Each alert is sent to these addresses when it is raised, acknowledged and cleared.</p>
      <List
        class="plain-list"
        rows={data?.items}
        problem={problem}
        rowKey={({ id }) => id}
        rowClass="hook"
        row={(hook) => (
          <>
            <code class="grow">{hook.url}</code>
            <SeverityTag severity={hook.least_severity} />
            <button type="button" class="small" onClick={() => void remove(hook)}>
              Remove<span class="sr-only"> {hook.url}</span>
            </button>
          </>
        )}
      />
      <Form
        id="hook"
        fields={[
          { name: 'url', label: 'Address (https)', kind: 'url', required: true },
          { name: 'severity', label: 'From severity', api: 'least_severity', options: SEVERITY_OPTIONS },
          {
            name: 'secret',
            label: 'Secret for the signature',
            kind: 'password',
            required: true,
            minLength: 8,
            input: { autocomplete: 'off' },
          },
        ]}
        initial={{ severity: 'warning' }}
        submit="Add address"
        tone=""
        done="Address added."
        send={async ({ url, severity, secret }) => {
          await ask('/webhook', { method: 'POST', json: { url, least_severity: severity, secret } });
          again();
        }}
      />
    </section>
  );
}
