// The office's first screen: how far the work is, on figures, lists and the map, live.

import { useMemo } from 'preact/hooks';
import { amount, ago, percent, plural } from '../lib/format';
import { pointsOfAll } from '../lib/points';
import * as state from '../state';
import { Icon, type IconName } from '../ui/icons';
import { MapView } from '../ui/map';
import { Empty, Page, Progress } from '../ui/parts';
import { Link, navigate } from '../ui/router';
import { movers } from './map';
import { RefreshButton } from './lists';

export function Overview() {
  const meters = useMemo(() => [...state.meters.value.values()], [state.meters.value]);
  const open = state.lists.value.filter((list) => list.state === 'open');
  const [done, total] = [
    open.reduce((sum, list) => sum + list.done, 0),
    open.reduce((sum, list) => sum + list.total, 0),
  ];
  const missed = meters.filter((meter) => meter.state === 'missed').length;
  const leaks = meters.filter((meter) => meter.state === 'leak_suspected').length;
  const points = useMemo(
    () => pointsOfAll(meters, state.lists.value, new Map()),
    [meters, state.lists.value],
  );
  const moving = useMemo(movers, [state.vans.value, state.position.value]);
  return (
    <Page title="Overview" wide actions={<RefreshButton />}>
      <div class="tiles" data-testid="overview">
        <Tile to="/map" icon="map" value={meters.length} name="meters" />
        <Tile
          to="/office/lists"
          icon="check"
          value={`${percent(done, total)} %`}
          name={`of open work, ${amount(done)} of ${amount(total)}`}
        />
        <Tile
          to="/office/missed"
          icon="missed"
          value={missed}
          name="missed"
          tone={missed > 0 ? 'warn' : ''}
        />
        <Tile
          to="/office/leaks"
          icon="leak"
          value={leaks}
          name="possible leaks"
          tone={leaks > 0 ? 'bad' : ''}
        />
      </div>
      <div class="split">
        <section class="card" aria-labelledby="work-head">
          <h2 id="work-head">Open work</h2>
          {open.length === 0 && <Empty icon="lists" title="No open work lists" />}
          <ul class="plain-list">
            {open.map((list) => (
              <li key={list.id}>
                <Link to={`/lists/${encodeURIComponent(list.id)}`}>{list.name}</Link>
                <Progress
                  done={list.done}
                  total={list.total}
                  label={`${list.name}: ${list.done} of ${list.total}`}
                />
                <small class="muted">
                  {list.assignee ?? 'not assigned'} · {amount(list.done)} of {plural(list.total, 'meter')}
                </small>
              </li>
            ))}
          </ul>
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

function Tile(props: { to: string; icon: IconName; value: number | string; name: string; tone?: string }) {
  const { to, icon, value, name, tone } = props;
  return (
    <Link to={to} class={`tile ${tone ?? ''}`}>
      <Icon name={icon} size={26} />
      <span>
        <strong>{typeof value === 'number' ? amount(value) : value}</strong>
        <small>{name}</small>
      </span>
    </Link>
  );
}
