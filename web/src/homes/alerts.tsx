// Alerts: what is wrong where, since when, and who has seen it.

import { useState } from 'preact/hooks';
import { ask, useAsked } from '../data/office';
import { ago, dateTime } from '../lib/format';
import * as app from '../state';
import type { Page as Items } from '../types';
import { DialogForm } from '../ui/form';
import { List, type ListProps } from '../ui/list';
import { Choice, Page, Tag } from '../ui/parts';
import { Link } from '../ui/router';
import { measured, quantityName, withAlert } from './lib';
import { Hindrance, Refresh, SeverityTag } from './parts';
import { alerts } from './state';
import type { Alert } from './types';

const SHOWN = { open: 'Open', cleared: 'Cleared' };

export function Alerts() {
  const [which, setWhich] = useState<'open' | 'cleared'>('open');
  return (
    <Page actions={<Refresh />}>
      <Hindrance />
      <Choice label="Which alerts" value={which} options={SHOWN} onChange={setWhich} />
      {which === 'cleared' ? (
        <Cleared />
      ) : (
        <AlertList
          rows={alerts.value}
          empty={{ icon: 'check', title: 'No alerts: everything is within its limits' }}
          showsHome
        />
      )}
    </Page>
  );
}

function Cleared() {
  const { data, problem, again } = useAsked<Items<Alert>>('/alert?state=cleared&limit=100');
  return (
    <AlertList
      rows={data?.items}
      problem={problem}
      again={again}
      empty={{ icon: 'check', title: 'No alert has cleared yet' }}
      showsHome
    />
  );
}

export function AlertList({ showsHome, ...list }: Omit<ListProps<Alert>, 'rowKey'> & { showsHome: boolean }) {
  const [asked, setAsked] = useState<Alert | null>(null);
  return (
    <>
      <List
        {...list}
        class="alerts"
        testid="alerts"
        rowKey={({ id }) => id}
        row={(alert) => (
          <div
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
          </div>
        )}
      />
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
  return (
    <DialogForm
      title={`Acknowledge: ${alert.rule_name}`}
      intro={
        <p>
          Others see that you are dealing with it. The alert stays until the value is back within its limits.
        </p>
      }
      onClose={onClose}
      id="ack"
      fields={[{ name: 'note', label: 'Action taken', input: { maxLength: 500 } }]}
      submit="Acknowledge"
      done="Acknowledged."
      send={async ({ note }) => {
        const path = `/alert/${encodeURIComponent(alert.id)}/acknowledge`;
        const changed = await ask<Alert>(path, { method: 'POST', json: { note: note || null } });
        alerts.value = withAlert(alerts.value, changed);
      }}
    />
  );
}
