// Meters somebody has to look after: missed ones and those that count without a pause.

import { useMemo } from 'preact/hooks';
import { dateTime, meterNumber, meterTitle, mediumName, plural, quantity } from '../lib/format';
import * as state from '../state';
import type { Meter, MeterState } from '../types';
import { Empty, Page, Table, Tag } from '../ui/parts';
import { Link } from '../ui/router';

const MOST = 500;

export function Missed() {
  return (
    <Concern
      title="Missed meters"
      state="missed"
      fine="Nothing was missed"
      about="Their work list is due or closed, and no reading came."
    />
  );
}

export function Leaks() {
  return (
    <Concern
      title="Possible leaks"
      state="leak_suspected"
      fine="No meter counts without a pause"
      about="These meters count without a pause, also at night: a tap, a cistern or a pipe may be open."
    />
  );
}

function Concern({
  title,
  state: concern,
  fine,
  about,
}: {
  title: string;
  state: MeterState;
  fine: string;
  about: string;
}) {
  const meters = useMemo(
    () => [...state.meters.value.values()].filter((meter) => meter.state === concern),
    [state.meters.value, concern],
  );
  return (
    <Page title={title} wide>
      {meters.length === 0 ? <Empty icon="check" title={fine} /> : <p>{about}</p>}
      {meters.length > 0 && (
        <Table
          caption={title}
          testid={concern}
          rows={meters.slice(0, MOST)}
          rowKey={(meter) => meter.id}
          columns={[
            {
              name: 'Meter',
              cell: (meter) => (
                <Link to={`/meters/${encodeURIComponent(meter.id)}`}>{meterTitle(meter)}</Link>
              ),
            },
            { name: 'Number', cell: meterNumber },
            { name: 'Medium', cell: (meter) => mediumName(meter.medium) },
            {
              name: 'Last reading',
              number: true,
              cell: (meter) => (meter.last ? quantity(meter.last.value, meter.last.unit) : 'never'),
            },
            { name: 'On', cell: (meter) => (meter.last ? dateTime(meter.last.at) : '') },
            { name: 'Work list', cell: (meter) => listNames(meter) },
          ]}
        />
      )}
      {meters.length > MOST && <p class="muted">{plural(meters.length - MOST, 'more meter')} not shown.</p>}
    </Page>
  );
}

function listNames(meter: Meter) {
  const names = state.lists.value.filter(
    (list) => list.state === 'open' && list.tasks?.some((task) => task.meter.id === meter.id),
  );
  return names.length === 0 ? <Tag tone="warn">none</Tag> : names.map((list) => list.name).join(', ');
}
