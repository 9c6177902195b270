// Small pieces of the broker's screens, and data that is fetched again and again.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { useLoaded, type Loaded } from '../data/office';
import { Loading } from '../ui/list';
import { Note, Page } from '../ui/parts';
import { currentOf, Link, sections } from '../ui/router';
import { ask, LIVE_MS, me, overview, problem } from './state';
import type { Overview } from './types';

/** A screen of the broker: the ways to the others are at the top of each. */
export function BrokerScreen(props: { title?: string; back?: string; children: ComponentChildren }) {
  const { children, ...page } = props;
  const all = sections();
  const here = currentOf(all);
  const ways = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a phone, not all of them fit.
    const link = ways.current?.querySelector<HTMLElement>('[aria-current]');
    if (link && ways.current) ways.current.scrollLeft = link.offsetLeft - ways.current.offsetLeft - 60;
  }, []);
  return (
    <Page wide {...page}>
      <nav class="sections" aria-label="Broker" ref={ways}>
        {all.map((way) => (
          <Link key={way.path} to={way.path} aria-current={way === here ? 'page' : undefined}>
            {way.section}
          </Link>
        ))}
      </nav>
      {problem.value && (
        <Note tone="warn" role="status">
          {problem.value} What is shown may be old; the page tries again by itself.
        </Note>
      )}
      {children}
    </Page>
  );
}

/** A screen of what the overview says, which the broker is asked for all the time. */
export function OverviewScreen({ children }: { children: (now: Overview) => ComponentChildren }) {
  return <BrokerScreen>{overview.value ? children(overview.value) : <Loading />}</BrokerScreen>;
}

/** A path of the API, asked for again every `everyMs` while the page is seen. Null asks for nothing. */
export function useLive<T>(wanted: string | null, everyMs = LIVE_MS): Loaded<T> {
  return useLoaded(wanted, wanted === null || !me.value ? null : () => ask<T>(wanted), { everyMs });
}

/** A payload as the API gives it. */
export function Payload(props: { payload?: string | undefined; base64?: string | undefined; bytes: number }) {
  if (props.bytes === 0) return <span class="muted">empty</span>;
  if (props.payload !== undefined) return <code class="payload">{props.payload}</code>;
  return <code class="payload">base64: {props.base64}</code>;
}

/** A value that lags behind what is typed, so that not every letter is asked for. */
export function useSettled<T>(value: T, ms = 300): T {
  const [settled, setSettled] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer.current);
  }, [value, ms]);
  return settled;
}
