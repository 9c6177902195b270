// Small pieces that many screens use.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { amount, percent, signalBars } from '../lib/format';
import { Icon, type IconName } from './icons';
import { current, Link } from './router';

/** A screen's frame: heading, where to go back to, content, and what the thumb reaches. */
export function Page(props: {
  /** The table's, unless given. */
  title?: string;
  back?: string;
  actions?: ComponentChildren;
  children: ComponentChildren;
  wide?: boolean;
}) {
  const { title = current.value?.route.title ?? '', back, actions, children, wide } = props;
  useEffect(() => {
    document.title = `${title} · Fulmar`;
  }, [title]);
  return (
    <div class={wide ? 'page wide' : 'page'}>
      <div class="page-head">
        {back && (
          <Link to={back} class="icon-button" aria-label="Back">
            <Icon name="back" />
          </Link>
        )}
        <h1 tabIndex={-1}>{title}</h1>
        {actions && <div class="page-actions">{actions}</div>}
      </div>
      {children}
    </div>
  );
}

export function Progress({ done, total, label }: { done: number; total: number; label: string }) {
  const value = percent(done, total);
  return (
    <div
      class="progress"
      role="progressbar"
      aria-valuenow={value}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-label={label}
    >
      <span style={{ width: `${value}%` }} />
    </div>
  );
}

export type Tone = 'neutral' | 'info' | 'good' | 'warn' | 'bad';

export function Tag({ tone = 'neutral', children }: { tone?: Tone; children: ComponentChildren }) {
  return <span class={`tag ${tone}`}>{children}</span>;
}

export function Empty(props: { icon: IconName; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={props.icon} size={40} />
      <p class="empty-title">{props.title}</p>
      {props.children && <div class="muted">{props.children}</div>}
    </div>
  );
}

export function Note(props: { tone: Tone; children: ComponentChildren; role?: 'alert' | 'status' }) {
  const { tone, children, role } = props;
  const icon: IconName = tone === 'good' ? 'check' : tone === 'warn' || tone === 'bad' ? 'warn' : 'other';
  return (
    <div class={`note ${tone}`} role={role}>
      <Icon name={icon} size={20} />
      <div>{children}</div>
    </div>
  );
}

interface Figure {
  to: string;
  icon: IconName;
  value: number | string;
  name: string;
  /** How it looks unless it is nothing. */
  alarm?: 'warn' | 'bad';
}

/** Figures that lead to what they count. */
export function Tiles({ testid, tiles }: { testid: string; tiles: readonly Figure[] }) {
  return (
    <div class="tiles" data-testid={testid}>
      {tiles.map(({ to, icon, value, name, alarm }) => (
        <Link
          key={name}
          to={to}
          class={`tile ${value === 0 ? '' : (alarm ?? '')}`}
          data-testid={`tile-${name}`}
        >
          <Icon name={icon} size={26} />
          <span>
            <strong>{typeof value === 'number' ? amount(value) : value}</strong>
            <small>{name}</small>
          </span>
        </Link>
      ))}
    </div>
  );
}

/** A button with an icon for a name, at the head of a page. */
export function RefreshButton({ busy = false, onClick }: { busy?: boolean; onClick: () => void }) {
  return (
    <button type="button" class="icon-button" aria-label="Refresh" disabled={busy} onClick={onClick}>
      <span class={busy ? 'spin' : ''}>
        <Icon name="refresh" />
      </span>
    </button>
  );
}

/** Buttons for the two forms of a table as a file. */
export function Exports({ onExport }: { onExport: (kind: 'csv' | 'xlsx') => unknown }) {
  return (
    <>
      {(['csv', 'xlsx'] as const).map((kind) => (
        <button
          key={kind}
          type="button"
          class="small"
          onClick={() => void onExport(kind)}
          data-testid={`export-${kind}`}
        >
          <Icon name="export" size={18} /> {kind === 'csv' ? 'CSV' : 'Excel'}
        </button>
      ))}
    </>
  );
}

export function Signal({ dbm }: { dbm: number | null | undefined }) {
  const bars = signalBars(dbm);
  const label =
    dbm === null || dbm === undefined ? 'signal unknown' : `${Math.round(dbm)} dBm, ${bars} of 4 bars`;
  return (
    <span class={`signal s${bars}`} role="img" aria-label={label} title={label}>
      {[1, 2, 3, 4].map((bar) => (
        <i key={bar} class={bar <= bars ? 'on' : ''} />
      ))}
    </span>
  );
}

/** Facts as a list of names and values; a value that is null is left out. */
export function FactList({ facts }: { facts: readonly (readonly [string, ComponentChildren])[] }) {
  const known = facts.filter(([, value]) => value !== null);
  return (
    <dl class="facts">
      {known.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A question in front of everything else; Escape and the backdrop close it. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    // Closed before it goes, it gives the focus back.
    return () => element?.close();
  }, []);
  return (
    <dialog ref={dialog} onClose={props.onClose} aria-labelledby="dialog-title">
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}

/** Choices of which one holds; a set of radio buttons that looks like a switch. */
export function Choice<T extends string>(props: {
  label: string;
  value: T;
  options: Readonly<Record<T, string>>;
  onChange: (value: T) => void;
}) {
  const name = props.label.replace(/\W/g, '-');
  return (
    <fieldset class="choice">
      <legend class="sr-only">{props.label}</legend>
      {(Object.entries(props.options) as [T, string][]).map(([value, text]) => (
        <label key={value} class={value === props.value ? 'on' : ''}>
          <input
            type="radio"
            name={name}
            checked={value === props.value}
            onChange={() => props.onChange(value)}
          />
          {text}
        </label>
      ))}
    </fieldset>
  );
}
