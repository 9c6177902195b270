// The screens of an installation of homes, and which belongs to which path. Fetched when such an installation is
// first shown: who reads meters does not load it.

import type { ComponentType } from 'preact';
import { useEffect } from 'preact/hooks';
import { More, Settings } from '../pages/settings';
import * as app from '../state';
import { Empty, Page } from '../ui/parts';
import { match, path } from '../ui/router';
import { Alerts } from './alerts';
import { HomePage } from './home';
import { Homes } from './overview';
import { Rules } from './rules';
import { Sensors } from './sensors';
import { follow, forget } from './state';
import './homes.css';

const SCREENS: readonly (readonly [string, ComponentType<{ id: string }>])[] = [
  ['/homes', Homes],
  ['/homes/:id', HomePage],
  ['/alerts', Alerts],
  ['/sensors', Sensors],
  ['/rules', Rules],
  ['/settings', Settings],
  ['/more', More],
];

export function Section() {
  const twin = app.twin.value?.id;
  useEffect(() => {
    forget();
    return follow();
  }, [twin]);
  const now = path.value === '/' ? '/homes' : path.value;
  for (const [pattern, Screen] of SCREENS) {
    const named = match(pattern, now);
    if (named) return <Screen key={now} id={named['id'] ?? ''} />;
  }
  return (
    <Page title="Not found" back="/">
      <Empty icon="search" title="There is nothing at this address" />
    </Page>
  );
}
