// Paths of the app as a signal. A change of page moves the focus to the new page's heading, as a page load
// would, so that a screen reader and the keyboard start there.

import { signal } from '@preact/signals';
import type { AnchorHTMLAttributes, ComponentChildren } from 'preact';

export const path = signal(location.pathname);
export const query = signal(new URLSearchParams(location.search));

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
