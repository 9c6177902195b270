// What the office asks the API for, as hooks: data, its error, and asking again.

import { useEffect, useRef, useState } from 'preact/hooks';
import { whileSeen } from '../lib/seen';
import * as state from '../state';
import { ApiError, call, pages, type Request } from './api';

export interface Loaded<T> {
  data: T | null;
  problem: string | null;
  again: () => void;
}

/** `/{twin}` and `path`, with the token. */
export function ask<T>(path: string, request: Request = {}): Promise<T> {
  const twin = state.twin.value?.id ?? '';
  const token = state.session.value?.token ?? null;
  return call<T>(`/${encodeURIComponent(twin)}${path}`, { ...request, token }).then((answer) => answer.data);
}

/**
 * What is loaded, under a key: a list is never shown under another filter than it was asked for; a sticky answer stays
 * until the next one comes. With `everyMs`, it is loaded again and again while the page is seen.
 */
export function useLoaded<T>(
  key: string | null,
  load: (() => Promise<T>) | null,
  { isSticky = false, everyMs = 0, most = 0 } = {},
): Loaded<T> {
  const [loaded, setLoaded] = useState<{ key: string | null; data: T } | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!load) return undefined;
    let isGone = false;
    const look = async () => {
      try {
        const data = await load();
        if (isGone) return;
        setLoaded({ key, data });
        setProblem(null);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        if (isGone) return;
        setProblem(error.message);
        // What is gone is not shown as if it were there.
        if (error.status === 404) setLoaded(null);
      }
    };
    const stop = everyMs > 0 ? whileSeen(everyMs, look) : void look();
    return () => {
      isGone = true;
      stop?.();
    };
  }, [key, everyMs, most, round, load === null, state.twin.value?.id]);
  const data = isSticky || loaded?.key === key ? (loaded?.data ?? null) : null;
  return { data, problem, again: () => setRound((before) => before + 1) };
}

/** Null asks for nothing. */
export function useAsked<T>(path: string | null): Loaded<T> {
  return useLoaded(path, path === null ? null : () => ask<T>(path), { isSticky: true });
}

/** At most `most` items of a list that comes in pages. */
export function usePages<T>(path: string, most: number): Loaded<T[]> {
  const load = () => {
    const twin = encodeURIComponent(state.twin.value?.id ?? '');
    return pages<T>(`/${twin}${path}`, state.session.value?.token ?? '', Math.min(most, 1000), most);
  };
  return useLoaded(path, load, { most });
}

/** Asks again when everything was fetched anew, or a reading of this meter is announced. */
export function useAgainAfterRefresh(again: () => void, meter?: string): void {
  const own = [...state.announced.value.values()].filter((one) => one.meter === meter);
  const now = [state.refreshes.value, ...own.map(({ id, etag }) => `${id} ${etag}`)].join();
  const last = useRef(now);
  useEffect(() => {
    if (now !== last.current) again();
    last.current = now;
  }, [now]);
}

async function blobOf(path: string): Promise<Blob | string> {
  const twin = encodeURIComponent(state.twin.value?.id ?? '');
  const headers = { authorization: `Bearer ${state.session.value?.token ?? ''}` };
  const response = await fetch(`/api/v1/${twin}${path}`, { headers }).catch(() => null);
  if (response?.ok) return response.blob();
  return response ? `The server answered ${response.status}.` : 'The server cannot be reached.';
}

/** Fetches a file with the token, which a plain link could not send, and hands it to the browser. */
export async function download(path: string, name: string): Promise<void> {
  const blob = await blobOf(path);
  if (typeof blob === 'string') {
    state.say(blob, 'bad');
    return;
  }
  const url = URL.createObjectURL(blob);
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A photo as something an `img` can show; the caller gives it back. */
export async function photoUrl(id: string): Promise<string | null> {
  const blob = await blobOf(`/photo/${encodeURIComponent(id)}`);
  return typeof blob === 'string' ? null : URL.createObjectURL(blob);
}
