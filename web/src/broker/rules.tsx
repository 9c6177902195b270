// Why a client may or may not publish or subscribe, and the rules that can change.

import { useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import { Field, Note, Tag } from '../ui/parts';
import { query } from '../ui/router';
import { BrokerScreen, Facts } from './parts';
import { Roles } from './roles';
import { ask, mayAdminister } from './state';
import type { Decision } from './types';

type Action = 'publish' | 'subscribe' | 'receive';

const ACTIONS: readonly (readonly [Action, string])[] = [
  ['publish', 'publish to the topic'],
  ['subscribe', 'subscribe to the filter'],
  ['receive', 'receive messages of the topic'],
];

export function Rules() {
  const [client, setClient] = useState(query.value.get('client') ?? '');
  const [user, setUser] = useState('');
  const [address, setAddress] = useState('');
  const [action, setAction] = useState<Action>('publish');
  const [topic, setTopic] = useState('');
  const [decision, setDecision] = useState<Decision | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const explain = async (event: Event) => {
    event.preventDefault();
    const asked = new URLSearchParams({ action, topic });
    if (client) asked.set('client', client);
    if (user) asked.set('user', user);
    if (address) asked.set('address', address);
    try {
      setDecision(await ask<Decision>(`/explain?${asked.toString()}`));
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setDecision(null);
      setProblem(error.message);
    }
  };
  return (
    <BrokerScreen title="Rules">
      <section class="card" aria-labelledby="explain-head">
        <h2 id="explain-head">May a client do this?</h2>
        <form class="form" onSubmit={(event) => void explain(event)}>
          <div class="form-grid">
            <Field label="Client identifier" id="explain-client">
              <input
                id="explain-client"
                autocapitalize="none"
                spellcheck={false}
                value={client}
                onInput={(event) => setClient(event.currentTarget.value)}
              />
            </Field>
            <Field label="User" id="explain-user" hint="Empty: the user of this client's session.">
              <input
                id="explain-user"
                autocapitalize="none"
                spellcheck={false}
                value={user}
                onInput={(event) => setUser(event.currentTarget.value)}
              />
            </Field>
            <Field
              label="Address"
              id="explain-address"
              hint="For bans and limits of addresses. Empty: the connected client's."
            >
              <input
                id="explain-address"
                autocapitalize="none"
                spellcheck={false}
                value={address}
                onInput={(event) => setAddress(event.currentTarget.value)}
              />
            </Field>
            <Field label="May it" id="explain-action">
              <select
                id="explain-action"
                value={action}
                onChange={(event) => setAction(event.currentTarget.value as Action)}
              >
                {ACTIONS.map(([value, text]) => (
                  <option key={value} value={value}>
                    {text}
                  </option>
                ))}
              </select>
            </Field>
            <Field label={action === 'subscribe' ? 'Topic filter' : 'Topic'} id="explain-topic">
              <input
                id="explain-topic"
                autocapitalize="none"
                spellcheck={false}
                required
                value={topic}
                onInput={(event) => setTopic(event.currentTarget.value)}
              />
            </Field>
          </div>
          <div class="row">
            <button type="submit" class="primary">
              Explain
            </button>
          </div>
        </form>
        {problem && (
          <Note tone="warn" role="alert">
            {problem}
          </Note>
        )}
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
      <Facts
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
