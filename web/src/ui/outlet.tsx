// The page of the address, and parts of the app that are fetched when they are first needed.

import { useEffect, useLayoutEffect, useState } from 'preact/hooks';
import { Empty, Note, Page } from './parts';
import { address, current, type Route, type Screen } from './router';

export function Current() {
  const title = current.value?.route.title ?? 'Not found';
  // Before the effects of the page, which may have a title of its own.
  useLayoutEffect(() => {
    document.title = `${title} · Fulmar`;
  }, [title, address.value]);
  if (!current.value) {
    return (
      <Page title="Not found" back="/">
        <Empty icon="search" title="There is nothing at this address" />
      </Page>
    );
  }
  const { route, id } = current.value;
  return <Loaded key={address.value} load={route.load} id={id} />;
}

export function Loaded({ load, id = '' }: { load: Route['load']; id?: string }) {
  const [loading] = useState(() => ({ screen: load() }));
  const [Found, setFound] = useState<Screen | null>(() =>
    loading.screen instanceof Promise ? null : loading.screen,
  );
  const [isBroken, setBroken] = useState(false);
  useEffect(() => {
    if (!(loading.screen instanceof Promise)) return;
    loading.screen.then(
      (screen) => setFound(() => screen),
      () => setBroken(true),
    );
  }, [loading]);
  if (isBroken) return <Note tone="warn">This part of the app could not be loaded. Reload the page.</Note>;
  return Found && <Found id={id} />;
}
