// Roles: the access rules that can change while the broker runs. Only administrators see and change them.

import { useState } from 'preact/hooks';
import { Empty, Field, Note, Table, Tag } from '../ui/parts';
import { attempt, Careful, useLive } from './parts';
import type { Rule, TopicRole } from './types';

const EVERY_MS = 5000;
const MOST = 200;

const ACTIONS: Record<Rule['action'], string> = {
  publish: 'publish',
  receive: 'receive',
  subscribe: 'subscribe',
  subscribe_literal: 'subscribe to exactly this filter',
  unsubscribe: 'unsubscribe',
  unsubscribe_literal: 'unsubscribe from exactly this filter',
};

export function Roles() {
  const { data, problem, again } = useLive<{ roles: TopicRole[]; next?: string }>(
    `/roles?limit=${MOST}`,
    EVERY_MS,
  );
  return (
    <section class="stack" aria-labelledby="roles-head" data-testid="roles">
      <h2 id="roles-head">Roles</h2>
      {problem && <Note tone="warn">{problem}</Note>}
      {data && data.roles.length === 0 && (
        <Empty icon="lists" title="There are no roles">
          fulmar ctl roles add makes one. The rules of the configuration are in its file.
        </Empty>
      )}
      {data?.roles.map((role) => (
        <RoleCard key={role.name} role={role} changed={again} />
      ))}
      {data?.next !== undefined && (
        <p class="muted">These are the first {MOST}; fulmar ctl roles list shows all.</p>
      )}
    </section>
  );
}

function RoleCard({ role, changed }: { role: TopicRole; changed: () => void }) {
  const path = `/roles/${encodeURIComponent(role.name)}/rules`;
  const remove = async ({ action, topic }: Rule) => {
    const which = new URLSearchParams({ action, topic });
    await attempt(`${path}?${which.toString()}`, { method: 'DELETE' }, `The rule for ${topic} is removed.`);
    changed();
  };
  return (
    <section class="card" aria-label={`Role ${role.name}`}>
      <h3>{role.name}</h3>
      {role.description && <p class="muted">{role.description}</p>}
      {role.rules.length === 0 && <p class="muted">It has no rules.</p>}
      {role.rules.length > 0 && (
        <Table
          caption={`Rules of ${role.name}, in the order in which they are asked`}
          rows={role.rules}
          rowKey={(rule) => `${rule.action} ${rule.topic}`}
          columns={[
            {
              name: 'Effect',
              cell: (rule) => <Tag tone={rule.allow ? 'good' : 'bad'}>{rule.allow ? 'allow' : 'deny'}</Tag>,
            },
            { name: 'Action', cell: (rule) => ACTIONS[rule.action] },
            { name: 'Topic', cell: (rule) => <code>{rule.topic}</code> },
            { name: 'Priority', number: true, cell: (rule) => rule.priority },
            {
              name: 'Change',
              cell: (rule) => (
                <Careful
                  label="Remove"
                  question={`Remove the rule for ${rule.topic}?`}
                  onYes={() => remove(rule)}
                >
                  <p>Connected clients are checked without it at once.</p>
                </Careful>
              ),
            },
          ]}
        />
      )}
      <NewRule role={role.name} path={path} added={changed} />
    </section>
  );
}

function NewRule({ role, path, added }: { role: string; path: string; added: () => void }) {
  const [isAllowed, setAllowed] = useState(true);
  const [action, setAction] = useState<Rule['action']>('publish');
  const [topic, setTopic] = useState('');
  const add = async (event: Event) => {
    event.preventDefault();
    const json: Rule = { action, topic, allow: isAllowed, priority: 0 };
    if (await attempt(path, { method: 'POST', json }, `The rule for ${topic} holds.`)) setTopic('');
    added();
  };
  const id = (name: string) => `${role}-${name}`;
  return (
    <form class="form" aria-label={`New rule of ${role}`} onSubmit={(event) => void add(event)}>
      <div class="form-grid">
        <Field label="Effect" id={id('effect')}>
          <select
            id={id('effect')}
            value={isAllowed ? 'allow' : 'deny'}
            onChange={(event) => setAllowed(event.currentTarget.value === 'allow')}
          >
            <option value="allow">allow</option>
            <option value="deny">deny</option>
          </select>
        </Field>
        <Field label="Action" id={id('action')}>
          <select
            id={id('action')}
            value={action}
            onChange={(event) => setAction(event.currentTarget.value as Rule['action'])}
          >
            {Object.entries(ACTIONS).map(([value, text]) => (
              <option key={value} value={value}>
                {text}
              </option>
            ))}
          </select>
        </Field>
        <Field
          label="Topic or filter"
          id={id('topic')}
          hint="%u and %c stand for user and client identifier."
        >
          <input
            id={id('topic')}
            autocapitalize="none"
            spellcheck={false}
            required
            value={topic}
            onInput={(event) => setTopic(event.currentTarget.value)}
          />
        </Field>
      </div>
      <div class="row">
        <button type="submit">Add the rule</button>
      </div>
    </form>
  );
}
