// Why a client may or may not publish or subscribe, and the rules that can change.

import { useState } from 'preact/hooks';
import { Form } from '../ui/form';
import { FactList, Note, Tag } from '../ui/parts';
import { query } from '../ui/router';
import { BrokerScreen } from './parts';
import { Roles } from './roles';
import { ask, mayAdminister } from './state';
import type { Decision } from './types';

const ACTIONS = {
  publish: 'publish to the topic',
  subscribe: 'subscribe to the filter',
  receive: 'receive messages of the topic',
};

export function Rules() {
  const [decision, setDecision] = useState<Decision | null>(null);
  return (
    <BrokerScreen>
      <section class="card" aria-labelledby="explain-head">
        <h2 id="explain-head">May a client do this?</h2>
        <Form<'client' | 'user' | 'address' | 'action' | 'topic'>
          id="explain"
          fields={({ action }) => [
            { name: 'client', label: 'Client identifier', kind: 'code' },
            { name: 'user', label: 'User', kind: 'code', hint: 'Empty: the user of this client’s session.' },
            {
              name: 'address',
              label: 'Address',
              kind: 'code',
              hint: 'For bans and limits of addresses. Empty: the connected client’s.',
            },
            { name: 'action', label: 'May it', options: ACTIONS },
            {
              name: 'topic',
              label: action === 'subscribe' ? 'Topic filter' : 'Topic',
              kind: 'code',
              required: true,
            },
          ]}
          initial={{ client: query.value.get('client') ?? '' }}
          keeps
          submit="Explain"
          send={async ({ action, topic, client, user, address }) => {
            setDecision(null);
            const asked = new URLSearchParams({
              action,
              topic,
              ...(client && { client }),
              ...(user && { user }),
              ...(address && { address }),
            });
            setDecision(await ask<Decision>(`/explain?${asked.toString()}`));
          }}
        />
        {decision && <Answer decision={decision} />}
      </section>
      {mayAdminister.value && <Roles />}
    </BrokerScreen>
  );
}

function Answer({ decision }: { decision: Decision }) {
  const { allowed, because, rule, user, connected, notes } = decision;
  return (
    <div class="stack" role="status" data-testid="decision">
      <p>
        <Tag tone={allowed ? 'good' : 'bad'}>{allowed ? 'allowed' : 'denied'}</Tag> {because}
      </p>
      <FactList
        facts={[
          ['Rule', rule === undefined ? null : <code>{rule}</code>],
          ['Decided for', user ?? 'an anonymous client'],
          ['Connected', connected ? 'yes' : 'no'],
        ]}
      />
      {notes.map((note) => (
        <Note key={note} tone="warn">
          {note}
        </Note>
      ))}
    </div>
  );
}
