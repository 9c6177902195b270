// Small pieces of the broker's screens, and data that is fetched again and again.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError } from '../data/api';
import * as app from '../state';
import { Dialog, Note, Page } from '../ui/parts';
import { Link, path } from '../ui/router';
import { ask, LIVE_MS, me, problem } from './state';

const SECTIONS: readonly (readonly [string, string])[] = [
  ['/broker', 'Overview'],
  ['/broker/clients', 'Clients'],
  ['/broker/sessions', 'Sessions'],
  ['/broker/topics', 'Topics'],
  ['/broker/rules', 'Rules'],
  ['/broker/server', 'Server'],
];

/** A screen of the broker: the ways to the others are at the top of each. */
export function BrokerScreen(props: { title: string; back?: string; children: ComponentChildren }) {
  const now = path.value === '/' ? '/broker' : path.value;
  const isCurrent = (to: string) => now === to || (to !== '/broker' && now.startsWith(`${to}/`));
  const ways = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a phone, not all of them fit.
    const link = ways.current?.querySelector<HTMLElement>('[aria-current]');
    if (link && ways.current) ways.current.scrollLeft = link.offsetLeft - ways.current.offsetLeft - 60;
  }, []);
  return (
    <Page title={props.title} wide {...(props.back ? { back: props.back } : {})}>
      <nav class="sections" aria-label="Broker" ref={ways}>
        {SECTIONS.map(([to, text]) => (
          <Link key={to} to={to} aria-current={isCurrent(to) ? 'page' : undefined}>
            {text}
          </Link>
        ))}
      </nav>
      {problem.value && (
        <Note tone="warn" role="status">
          {problem.value} What is shown may be old; the page tries again by itself.
        </Note>
      )}
      {props.children}
    </Page>
  );
}

export interface Live<T> {
  data: T | null;
  problem: string | null;
  again: () => void;
}

/** A path of the API, asked for again every `everyMs` while the page is seen. Null asks for nothing. */
export function useLive<T>(wanted: string | null, everyMs = LIVE_MS): Live<T> {
  const [found, setFound] = useState<{ path: string; data: T } | null>(null);
  const [failed, setFailed] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (wanted === null) return;
    let isGone = false;
    let isBusy = false;
    const look = () => {
      if (isBusy || document.visibilityState !== 'visible' || !me.value) return;
      isBusy = true;
      ask<T>(wanted)
        .then(
          (data) => {
            if (isGone) return;
            setFound({ path: wanted, data });
            setFailed(null);
          },
          (error: unknown) => {
            if (!(error instanceof ApiError)) throw error;
            if (!isGone) setFailed(error.message);
            // What is gone is not shown as if it were there.
            if (!isGone && error.status === 404) setFound(null);
          },
        )
        .finally(() => (isBusy = false));
    };
    look();
    const timer = setInterval(look, everyMs);
    return () => {
      isGone = true;
      clearInterval(timer);
    };
  }, [wanted, everyMs, round]);
  const data = found?.path === wanted ? found.data : null;
  return { data, problem: failed, again: () => setRound((before) => before + 1) };
}

/** Runs a change; what the broker says against it is shown. True if it was done. */
export async function attempt(path: string, request: { method: string; json?: unknown }, done: string) {
  try {
    await ask(path, request);
    app.say(done, 'good');
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    app.say(error.message, 'bad');
    return false;
  }
}

/** A button that asks before it acts. */
export function Careful(props: {
  label: string;
  question: string;
  children: ComponentChildren;
  onYes: () => Promise<unknown>;
}) {
  const [isOpen, setOpen] = useState(false);
  const yes = () => {
    setOpen(false);
    void props.onYes();
  };
  return (
    <>
      <button type="button" class="small" onClick={() => setOpen(true)}>
        {props.label}
      </button>
      {isOpen && (
        <Dialog title={props.question} onClose={() => setOpen(false)}>
          {props.children}
          <div class="dialog-actions">
            <button type="button" autofocus onClick={() => setOpen(false)}>
              Cancel
            </button>
            <button type="button" class="danger" onClick={yes}>
              {props.label}
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** Facts as a list of names and values; a value that is null is left out. */
export function Facts({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }) {
  return (
    <div class="facts">
      <dl>
        {facts
          .filter(([, value]) => value !== null)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </div>
  );
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
