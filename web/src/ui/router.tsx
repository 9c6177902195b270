// Addresses, and which page belongs to each. What pages there are is in one table (`routes.tsx`), which navigation and
// titles read too.

import { computed, signal } from '@preact/signals';
import type { AnchorHTMLAttributes, ComponentChildren, ComponentType } from 'preact';
import type { IconName } from './icons';

export type Screen = ComponentType<{ id: string }>;

/** Where navigation has a page: `device` at the end of the side bar, `more` at that of a phone's. */
export type Menu = 'main' | 'office' | 'server' | 'device' | 'more';

export interface Route {
  /** `:id` is handed to the page. */
  path: string;
  title: string;
  /** Who sees it; for others there is nothing at its address. */
  who: () => boolean;
  load: () => Screen | Promise<Screen>;
  menu?: Menu;
  icon?: IconName;
  /** Its name in navigation, if that is not its title. */
  name?: string;
  /** Its name in the bar of the broker's pages. */
  section?: string;
  /** The page in navigation that it belongs to, if its path does not tell. */
  under?: string;
  /** How much there is to do on it. */
  waiting?: () => { count: number; text: string };
}

export const path = signal(location.pathname);
export const query = signal(new URLSearchParams(location.search));

let routes: readonly Route[] = [];
let resolve = (asked: string): string => asked;

/** Tells what pages there are, and which one an address stands for, as the start page's does. */
export function register(table: readonly Route[], resolved: (path: string) => string): void {
  [routes, resolve] = [table, resolved];
}

/** The address of the page that is shown. */
export const address = computed(() => resolve(path.value));

/** The page that is shown, and what its address names. */
export const current = computed(() => {
  for (const route of routes) {
    const named = match(route.path, address.value);
    if (named && route.who()) return { route, id: named['id'] ?? '' };
  }
  return null;
});

export function menu(which: Menu): Route[] {
  return routes.filter((route) => route.menu === which && route.who());
}

export function sections(): Route[] {
  return routes.filter(({ section }) => section !== undefined);
}

/** Which of these the page is, or belongs to: the one with the longest path. */
export function currentOf(ways: readonly Route[]): Route | undefined {
  const under = current.value?.route.under;
  const now = address.value;
  const isAbove = ({ path: to }: Route) => now === to || now.startsWith(`${to}/`) || to === under;
  return ways.filter(isAbove).sort((a, b) => b.path.length - a.path.length)[0];
}

function follow(): void {
  path.value = location.pathname;
  query.value = new URLSearchParams(location.search);
}

export function navigate(to: string, how: 'push' | 'replace' = 'push'): void {
  if (to === location.pathname + location.search) return;
  if (how === 'push') history.pushState(null, '', to);
  else history.replaceState(history.state, '', to);
  follow();
  if (how === 'push') {
    scrollTo(0, 0);
    requestAnimationFrame(() => document.querySelector<HTMLElement>('main h1')?.focus());
  }
}

addEventListener('popstate', follow);

type LinkProps = Omit<AnchorHTMLAttributes, 'href'> & {
  to: string;
  children: ComponentChildren;
  'data-testid'?: string;
};

export function Link({ to, children, ...rest }: LinkProps) {
  const go = (event: MouseEvent) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey)
      return;
    event.preventDefault();
    navigate(to);
  };
  return (
    <a href={to} onClick={go} {...rest}>
      {children}
    </a>
  );
}

/** `/lists/:id` against a path: the named parts, or null. */
export function match(pattern: string, actual: string): Record<string, string> | null {
  const [wanted, parts] = [pattern.split('/'), actual.replace(/\/$/, '').split('/')];
  if (wanted.length !== parts.length) return null;
  const named: Record<string, string> = {};
  for (const [at, want] of wanted.entries()) {
    const part = parts[at] ?? '';
    if (want.startsWith(':')) named[want.slice(1)] = decode(part);
    else if (want !== part) return null;
  }
  return named;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
