// Roles: the access rules that can change while the broker runs. Only administrators see and change them.

import * as app from '../state';
import { Careful, Form } from '../ui/form';
import { List } from '../ui/list';
import { Tag } from '../ui/parts';
import { useLive } from './parts';
import { ask } from './state';
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

const EFFECTS = { allow: 'allow', deny: 'deny' };

export function Roles() {
  const { data, problem, again } = useLive<{ roles: TopicRole[]; next?: string }>(
    `/roles?limit=${MOST}`,
    EVERY_MS,
  );
  return (
    <section class="stack" aria-labelledby="roles-head" data-testid="roles">
      <h2 id="roles-head">Roles</h2>
      <List
        class="stack"
        rows={data?.roles}
        problem={problem}
        empty={{
          icon: 'lists',
          title: 'There are no roles',
          hint: 'fulmar ctl roles add makes one. The rules of the configuration are in its file.',
        }}
        rowKey={({ name }) => name}
        row={(role) => <RoleCard role={role} changed={again} />}
        rest={data?.next !== undefined && `These are the first ${MOST}; fulmar ctl roles list shows all.`}
      />
    </section>
  );
}

function RoleCard({ role, changed }: { role: TopicRole; changed: () => void }) {
  const path = `/roles/${encodeURIComponent(role.name)}/rules`;
  const remove = async ({ action, topic }: Rule) => {
    const which = new URLSearchParams({ action, topic });
    await ask(`${path}?${which.toString()}`, { method: 'DELETE' });
    changed();
  };
  return (
    <section class="card" aria-label={`Role ${role.name}`}>
      <h3>{role.name}</h3>
      {role.description && <p class="muted">{role.description}</p>}
      <List
        caption={`Rules of ${role.name}, in the order in which they are asked`}
        rows={role.rules}
        empty="It has no rules."
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
                yes="Remove"
                done={`The rule for ${rule.topic} is removed.`}
                onYes={() => remove(rule)}
              >
                <p>Connected clients are checked without it at once.</p>
              </Careful>
            ),
          },
        ]}
      />
      <NewRule role={role.name} path={path} added={changed} />
    </section>
  );
}

function NewRule({ role, path, added }: { role: string; path: string; added: () => void }) {
  return (
    <Form
      label={`New rule of ${role}`}
      id={role}
      fields={[
        { name: 'effect', label: 'Effect', options: EFFECTS },
        { name: 'action', label: 'Action', options: Object.entries(ACTIONS) },
        {
          name: 'topic',
          label: 'Topic or filter',
          kind: 'code',
          required: true,
          hint: '%u and %c stand for user and client identifier.',
        },
      ]}
      submit="Add the rule"
      tone=""
      send={async ({ effect, action, topic }) => {
        const json = { action, topic, allow: effect === 'allow', priority: 0 };
        await ask(path, { method: 'POST', json });
        app.say(`The rule for ${topic} holds.`, 'good');
        added();
      }}
    />
  );
}
