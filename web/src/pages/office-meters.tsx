// Meters somebody has to look after: missed ones and those that count without a pause, as the server reports them.

import { usePages, type Loaded } from '../data/office';
import { date, dateTime, meterNumber, meterTitle, mediumName, quantity } from '../lib/format';
import type { LeakReport, Meter, MissedReport } from '../types';
import { List, type Column } from '../ui/list';
import { Page } from '../ui/parts';
import { Link } from '../ui/router';

const MOST = 500;

export function Missed() {
  return (
    <Concern
      testid="missed"
      fine="Nothing was missed"
      about="Their work list is due or closed, and they have no reading."
      loaded={usePages<MissedReport>('/report/missed', MOST)}
      rowKey={(row) => `${row.meter.id} ${row.work_list.id}`}
      columns={[
        { name: 'Work list', cell: (row) => row.work_list.name },
        { name: 'Reader', cell: (row) => row.work_list.assignee ?? '' },
        { name: 'Due', cell: (row) => (row.work_list.due ? date(row.work_list.due) : '') },
        { name: 'Why', cell: (row) => why(row) },
      ]}
    />
  );
}

export function Leaks() {
  return (
    <Concern
      testid="leak_suspected"
      fine="No meter runs without a pause"
      about="These meters run without a pause, even at night: a tap, cistern or pipe may be leaking."
      loaded={usePages<LeakReport>('/report/leaks', MOST)}
      rowKey={(row) => row.meter.id}
      columns={[
        { name: 'Without a pause since', cell: (row) => dateTime(row.since) },
        { name: 'At least, per hour', number: true, cell: (row) => flow(row) },
      ]}
    />
  );
}

interface ConcernProps<T> {
  testid: string;
  fine: string;
  about: string;
  loaded: Loaded<T[]>;
  rowKey: (row: T) => string;
  columns: Column<T>[];
}

function Concern<T extends { meter: Meter }>(props: ConcernProps<T>) {
  const { testid, fine, about, rowKey, columns } = props;
  const { data, problem, again } = props.loaded;
  return (
    <Page wide>
      {data && data.length > 0 && <p>{about}</p>}
      <List
        caption={about}
        testid={testid}
        rows={data}
        problem={problem}
        again={again}
        empty={{ icon: 'check', title: fine }}
        rowKey={rowKey}
        columns={[
          {
            name: 'Meter',
            cell: ({ meter }) => (
              <Link to={`/meters/${encodeURIComponent(meter.id)}`}>{meterTitle(meter)}</Link>
            ),
          },
          { name: 'Number', cell: ({ meter }) => meterNumber(meter) },
          { name: 'Medium', cell: ({ meter }) => mediumName(meter.medium) },
          {
            name: 'Last reading',
            number: true,
            cell: ({ meter: { last } }) => (last ? quantity(last.value, last.unit) : 'never'),
          },
          { name: 'On', cell: ({ meter: { last } }) => (last ? dateTime(last.at) : '') },
          ...columns,
        ]}
        rest={(data?.length ?? 0) >= MOST && `Only the first ${MOST} are shown.`}
      />
    </Page>
  );
}

function why({ state, note }: MissedReport): string {
  const seen = state === 'unreachable' ? 'no access' : 'not visited';
  return note ? `${seen}: ${note}` : seen;
}

function flow({ least_per_hour: least, meter }: LeakReport): string {
  return least === null ? '–' : quantity(least, meter.unit);
}
