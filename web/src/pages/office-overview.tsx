// The office's first screen: how far the work is, on figures, lists and the map, live.

import { useMemo } from 'preact/hooks';
import { amount, ago, percent, plural } from '../lib/format';
import { pointsOfAll } from '../lib/points';
import * as state from '../state';
import { List } from '../ui/list';
import { MapView } from '../ui/map';
import { Page, Progress, Tiles } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { movers } from './map';
import { RefreshWork } from './lists';

export function Overview() {
  const meters = useMemo(() => [...state.meters.value.values()], [state.meters.value]);
  const open = state.lists.value.filter((list) => list.state === 'open');
  const [done, total] = [
    open.reduce((sum, list) => sum + list.done, 0),
    open.reduce((sum, list) => sum + list.total, 0),
  ];
  const work = `of open work, ${amount(done)} of ${amount(total)}`;
  const missed = meters.filter((meter) => meter.state === 'missed').length;
  const leaks = meters.filter((meter) => meter.state === 'leak_suspected').length;
  const points = useMemo(
    () => pointsOfAll(meters, state.lists.value, new Map()),
    [meters, state.lists.value],
  );
  const moving = useMemo(movers, [state.vans.value, state.position.value]);
  return (
    <Page wide actions={<RefreshWork />}>
      <Tiles
        testid="overview"
        tiles={[
          { to: '/map', icon: 'map', value: meters.length, name: 'meters' },
          { to: '/office/lists', icon: 'check', value: `${percent(done, total)} %`, name: work },
          { to: '/office/missed', icon: 'missed', value: missed, name: 'missed', alarm: 'warn' },
          { to: '/office/leaks', icon: 'leak', value: leaks, name: 'possible leaks', alarm: 'bad' },
        ]}
      />
      <div class="split">
        <section class="card" aria-labelledby="work-head">
          <h2 id="work-head">Open work</h2>
          <List
            class="plain-list"
            rows={open}
            empty={{ icon: 'lists', title: 'No open work lists', hint: 'Assign work makes a new one.' }}
            rowKey={({ id }) => id}
            row={(list) => (
              <>
                <Link to={`/lists/${encodeURIComponent(list.id)}`}>{list.name}</Link>
                <Progress
                  done={list.done}
                  total={list.total}
                  label={`${list.name}: ${list.done} of ${list.total}`}
                />
                <small class="muted">
                  {list.assignee ?? 'not assigned'} · {amount(list.done)} of {plural(list.total, 'meter')}
                </small>
              </>
            )}
          />
          {state.loadedAt.value && (
            <p class="muted small-text">As of {ago(state.loadedAt.value, state.clock.value)}</p>
          )}
        </section>
        <div class="card map-card">
          <MapView
            points={points}
            streetsOf={meters}
            movers={moving}
            follow={null}
            onPoint={(id) => navigate(`/meters/${encodeURIComponent(id)}`)}
            label="Progress on the map"
          />
        </div>
      </div>
    </Page>
  );
}
