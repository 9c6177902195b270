// Alerts: what is wrong where, since when, and who has seen it.

import { useState } from 'preact/hooks';
import { ask, useAsked } from '../data/office';
import { ago, dateTime } from '../lib/format';
import * as app from '../state';
import type { Page as Items } from '../types';
import { Choice, Dialog, Empty, Field, Note, Page, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { measured, quantityName, withAlert } from './lib';
import { attempt, Hindrance, RefreshButton, SeverityTag } from './parts';
import { alerts, loadSoon } from './state';
import type { Alert } from './types';

const SHOWN = [
  ['open', 'Open'],
  ['cleared', 'Cleared'],
] as const;

export function Alerts() {
  const [which, setWhich] = useState<'open' | 'cleared'>('open');
  return (
    <Page title="Alerts" actions={<RefreshButton />}>
      <Hindrance />
      <Choice label="Which alerts" value={which} options={SHOWN} onChange={setWhich} />
      {which === 'cleared' ? (
        <Cleared />
      ) : (
        <>
          {alerts.value.length === 0 && (
            <Empty icon="check" title="No alerts: everything is within its limits" />
          )}
          <AlertList alerts={alerts.value} showsHome />
        </>
      )}
    </Page>
  );
}

function Cleared() {
  const { data, problem } = useAsked<Items<Alert>>('/alert?state=cleared&limit=100');
  return (
    <>
      {problem && <Note tone="warn">{problem}</Note>}
      {data?.items.length === 0 && <Empty icon="check" title="No alert has cleared yet" />}
      {data && <AlertList alerts={data.items} showsHome />}
    </>
  );
}

export function AlertList({ alerts: shown, showsHome }: { alerts: readonly Alert[]; showsHome: boolean }) {
  const [asked, setAsked] = useState<Alert | null>(null);
  return (
    <>
      <ul class="alerts" data-testid="alerts">
        {shown.map((alert) => (
          <li
            key={alert.id}
            class={`card alert ${alert.severity} ${alert.state}`}
            data-testid="alert"
            data-quantity={alert.quantity}
            data-state={alert.state}
          >
            <AlertText alert={alert} showsHome={showsHome} />
            {alert.state === 'active' && app.mayManage.value && (
              <button type="button" class="small" onClick={() => setAsked(alert)} data-testid="acknowledge">
                Acknowledge<span class="sr-only"> {alert.rule_name}</span>
              </button>
            )}
          </li>
        ))}
      </ul>
      {asked && <Acknowledge alert={asked} onClose={() => setAsked(null)} />}
    </>
  );
}

function AlertText({ alert, showsHome }: { alert: Alert; showsHome: boolean }) {
  const { home, home_name: name, value, peak, unit, threshold } = alert;
  return (
    <div class="grow">
      <p class="row">
        <SeverityTag severity={alert.severity} />
        <strong>{alert.rule_name}</strong>
        {alert.state === 'acknowledged' && <Tag>acknowledged</Tag>}
        {alert.state === 'cleared' && <Tag tone="good">cleared</Tag>}
      </p>
      <p>
        {showsHome &&
          (home ? <Link to={`/homes/${encodeURIComponent(home)}`}>{name ?? home}</Link> : alert.device)}
        {showsHome && ' · '}
        {alert.quantity === null ? `No data from ${alert.device}` : quantityName(alert.quantity)}
        {alert.quantity !== null && value !== null && <> {measured(value, unit)}</>}
        {alert.quantity !== null && threshold !== null && <>, limit {measured(threshold, unit)}</>}
        {alert.quantity !== null && peak !== null && peak !== value && <>, worst {measured(peak, unit)}</>}
      </p>
      <p class="muted small-text">
        Since {dateTime(alert.raised_at)} ({ago(alert.raised_at, app.clock.value)})
        {alert.late && <>, reported late because its readings arrived late</>}
        {alert.cleared_at && <>, cleared {dateTime(alert.cleared_at)}</>}
        {alert.acknowledged_at && (
          <>
            {' '}
            · acknowledged by {alert.acknowledged_by ?? 'somebody'}, {dateTime(alert.acknowledged_at)}
          </>
        )}
        {alert.note && <> · “{alert.note}”</>}
      </p>
    </div>
  );
}

function Acknowledge({ alert, onClose }: { alert: Alert; onClose: () => void }) {
  const [note, setNote] = useState('');
  const save = async (event: Event) => {
    event.preventDefault();
    const path = `/alert/${encodeURIComponent(alert.id)}/acknowledge`;
    const send = async () => {
      const changed = await ask<Alert>(path, { method: 'POST', json: { note: note.trim() || null } });
      alerts.value = withAlert(alerts.value, changed);
    };
    if (await attempt(send, 'Acknowledged.')) {
      onClose();
      loadSoon();
    }
  };
  return (
    <Dialog title={`Acknowledge: ${alert.rule_name}`} onClose={onClose}>
      <form class="form" onSubmit={(event) => void save(event)}>
        <p>
          Others see that you are dealing with it. The alert stays until the value is back within its limits.
        </p>
        <Field label="Action taken" id="ack-note">
          <input
            id="ack-note"
            maxLength={500}
            value={note}
            onInput={(event) => setNote(event.currentTarget.value)}
          />
        </Field>
        <div class="dialog-actions">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Acknowledge
          </button>
        </div>
      </form>
    </Dialog>
  );
}
