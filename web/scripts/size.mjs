// Says what a first visit loads, by part, and whether that is within the budget: everything that the page
// asks for until a reader sees the map, and beside it what the service worker fetches behind it.

import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const BUDGET_KB = 250;
/** The broker's screens are for operators, who need none of the maps: beside the rest, with a budget of their own. */
const OPERATORS = /^\/assets\/broker-/;
const OPERATORS_KB = 20;

/** Prints a table; false when over budget. gzip, the larger of the two, is what counts. */
export function checkSize(dist) {
  const html = readFileSync(join(dist, 'index.html'), 'utf8');
  const entry = [...html.matchAll(/(?:src|href)="(\/[^"]+)"/g)].map((found) => found[1]);
  const first = new Set(['/index.html', ...entry.filter((path) => !path.startsWith('/icons/icon-'))]);
  const lazy = readdirSync(join(dist, 'assets'))
    .filter((name) => /\.(js|css)$/.test(name))
    .map((name) => `/assets/${name}`)
    .filter((path) => !first.has(path));
  const kilobytes = (path) => {
    try {
      return statSync(join(dist, `${path}.gz`)).size / 1000;
    } catch {
      return statSync(join(dist, path)).size / 1000;
    }
  };
  const show = (path, size) => console.log(`${size.toFixed(1).padStart(8)}  ${path}`);
  console.log('First load, kB compressed with gzip:');
  let total = 0;
  for (const path of first) {
    total += kilobytes(path);
    show(path, kilobytes(path));
  }
  console.log('Loaded when needed:');
  let all = total;
  let operators = 0;
  for (const path of lazy) {
    if (OPERATORS.test(path)) operators += kilobytes(path);
    else all += kilobytes(path);
    show(path, kilobytes(path));
  }
  console.log(
    `${total.toFixed(1).padStart(8)}  first load; ${all.toFixed(1)} with every screen; budget ${BUDGET_KB}`,
  );
  console.log(`${operators.toFixed(1).padStart(8)}  the broker's screens; budget ${OPERATORS_KB}`);
  // Stricter than asked: even somebody who opens every screen stays below it.
  return all < BUDGET_KB && operators < OPERATORS_KB;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  process.exitCode = checkSize(fileURLToPath(new URL('../dist', import.meta.url))) ? 0 : 1;
}
