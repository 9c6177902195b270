// Small pieces that many screens use.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { percent, signalBars } from '../lib/format';
import { Icon, type IconName } from './icons';
import { Link } from './router';

/** A screen's frame: heading, where to go back to, content, and what the thumb reaches. */
export function Page(props: {
  title: string;
  back?: string;
  actions?: ComponentChildren;
  children: ComponentChildren;
  wide?: boolean;
}) {
  const { title, back, actions, children, wide } = props;
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

export function Empty({
  icon,
  title,
  children,
}: {
  icon: IconName;
  title: string;
  children?: ComponentChildren;
}) {
  return (
    <div class="empty">
      <Icon name={icon} size={40} />
      <p class="empty-title">{title}</p>
      {children && <div class="muted">{children}</div>}
    </div>
  );
}

export function Note({
  tone,
  children,
  role,
}: {
  tone: Tone;
  children: ComponentChildren;
  role?: 'alert' | 'status';
}) {
  const icon: IconName = tone === 'good' ? 'check' : tone === 'warn' || tone === 'bad' ? 'warn' : 'other';
  return (
    <div class={`note ${tone}`} role={role}>
      <Icon name={icon} size={20} />
      <div>{children}</div>
    </div>
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

export function Field(props: {
  label: string;
  hint?: ComponentChildren;
  id: string;
  children: ComponentChildren;
}) {
  return (
    <div class="field">
      <label for={props.id}>{props.label}</label>
      {props.children}
      {props.hint && (
        <p class="hint" id={`${props.id}-hint`}>
          {props.hint}
        </p>
      )}
    </div>
  );
}

/** A question in front of everything else; Escape and the backdrop close it. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
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
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  const name = props.label.replace(/\W/g, '-');
  return (
    <fieldset class="choice">
      <legend class="sr-only">{props.label}</legend>
      {props.options.map(([value, text]) => (
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

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  number?: boolean;
  /** Of no use on paper. */
  onScreen?: boolean;
}

function classOf<T>({ number, onScreen }: Column<T>): string {
  return [number && 'number', onScreen && 'on-screen'].filter(Boolean).join(' ');
}

/** A table that turns into cards on a phone. */
export function Table<T>(props: {
  caption: string;
  rows: readonly T[];
  columns: Column<T>[];
  rowKey: (row: T) => string;
  testid?: string;
}) {
  return (
    <div class="table-wrap">
      <table data-testid={props.testid}>
        <caption class="sr-only">{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <th key={column.name} scope="col" class={classOf(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {props.rows.map((row) => (
            <tr key={props.rowKey(row)}>
              {props.columns.map((column) => (
                <td key={column.name} data-label={column.name} class={classOf(column)}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
