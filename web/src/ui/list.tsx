// The app's lists, as tables or as rows of any kind: what is there, and what is said while it is fetched, when it cannot
// be, when there is nothing, and when there is more.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import type { IconName } from './icons';
import { Empty, Note } from './parts';

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  number?: boolean;
  /** Of no use on paper. */
  onScreen?: boolean;
}

export interface ListProps<T> {
  /** Nothing while they are fetched. */
  rows: readonly T[] | null | undefined;
  rowKey: (row: T) => string;
  testid?: string;
  /** With columns: a table, which turns into cards on a phone. */
  caption?: string;
  columns?: readonly Column<T>[];
  /** Without columns: the content of each row, and the list's class. */
  row?: (row: T) => ComponentChildren;
  class?: string;
  label?: string;
  rowClass?: string | ((row: T) => string);
  problem?: string | null;
  again?: () => void;
  /** Said when there is nothing; a sentence of its own, or one within a card. */
  empty?: { icon: IconName; title: string; hint?: ComponentChildren } | string | null;
  /** How many are shown at first, of those that are here. */
  page?: number;
  /** Fetches more, if there are more. */
  onMore?: (() => void) | false | undefined;
  /** Said when there are more than can be fetched. */
  rest?: ComponentChildren;
}

export function List<T>(props: ListProps<T>) {
  const { rows, problem, again, empty, page = Infinity } = props;
  const [shown, setShown] = useState(page);
  const left = (rows?.length ?? 0) - shown;
  return (
    <>
      {problem && (
        <Note tone="warn" role="status">
          {problem}{' '}
          {again && (
            <button type="button" class="small" onClick={again}>
              Try again
            </button>
          )}
        </Note>
      )}
      {!rows && !problem && <Loading />}
      {rows?.length === 0 && typeof empty === 'string' && <p class="muted">{empty}</p>}
      {rows?.length === 0 && empty && typeof empty !== 'string' && (
        <Empty icon={empty.icon} title={empty.title}>
          {empty.hint}
        </Empty>
      )}
      {rows && rows.length > 0 && <Rows {...props} rows={left > 0 ? rows.slice(0, shown) : rows} />}
      {left > 0 && (
        <button type="button" onClick={() => setShown(shown + page)}>
          Show {Math.min(page, left)} more
        </button>
      )}
      {props.onMore && (
        <button type="button" onClick={props.onMore}>
          Show more
        </button>
      )}
      {props.rest && <p class="muted">{props.rest}</p>}
    </>
  );
}

/** Seen only if it takes long. */
export function Loading() {
  return (
    <p class="muted loading" role="status">
      Loading …
    </p>
  );
}

function Rows<T>(props: ListProps<T> & { rows: readonly T[] }) {
  const { rows, rowKey, columns, row, rowClass } = props;
  if (columns) return <Table {...props} columns={columns} />;
  return (
    <ul class={props.class} aria-label={props.label} data-testid={props.testid}>
      {rows.map((one) => (
        <li key={rowKey(one)} class={typeof rowClass === 'function' ? rowClass(one) : rowClass}>
          {row?.(one)}
        </li>
      ))}
    </ul>
  );
}

function classOf<T>({ number, onScreen }: Column<T>): string {
  return [number && 'number', onScreen && 'on-screen'].filter(Boolean).join(' ');
}

function Table<T>(props: ListProps<T> & { rows: readonly T[]; columns: readonly Column<T>[] }) {
  const { rows, columns, rowKey } = props;
  return (
    <div class="table-wrap">
      <table data-testid={props.testid}>
        <caption class="sr-only">{props.caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" class={classOf(column)}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column) => (
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
