// What the office asks the API for, as hooks: data, its error, and asking again.

import { useEffect, useRef, useState } from 'preact/hooks';
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

/** A list is never shown under another filter than it was asked for; a sticky answer stays until the next one comes. */
function useLoaded<T>(key: string, load: () => Promise<T>, isSticky: boolean): Loaded<T> {
  const [loaded, setLoaded] = useState<{ key: string; data: T } | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isGone = false;
    load().then(
      (data) => {
        if (isGone) return;
        setLoaded({ key, data });
        setProblem(null);
      },
      (error: unknown) => {
        if (!(error instanceof ApiError)) throw error;
        if (!isGone) setProblem(error.message);
      },
    );
    return () => {
      isGone = true;
    };
  }, [key, round, state.twin.value?.id]);
  const data = isSticky || loaded?.key === key ? (loaded?.data ?? null) : null;
  return { data, problem, again: () => setRound(round + 1) };
}

export function useAsked<T>(path: string): Loaded<T> {
  return useLoaded(path, () => ask<T>(path), true);
}

/** At most `most` items of a list that comes in pages. */
export function usePages<T>(path: string, most: number): Loaded<T[]> {
  const load = () => {
    const twin = encodeURIComponent(state.twin.value?.id ?? '');
    return pages<T>(`/${twin}${path}`, state.session.value?.token ?? '', Math.min(most, 1000), most);
  };
  return useLoaded(path, load, false);
}

/** Asks again when what the device stores has been fetched anew. */
export function useAgainAfterRefresh(again: () => void): void {
  const last = useRef(state.loadedAt.value);
  useEffect(() => {
    if (state.loadedAt.value !== last.current) again();
    last.current = state.loadedAt.value;
  }, [state.loadedAt.value]);
}

/** Fetches a file with the token, which a plain link could not send, and hands it to the browser. */
export async function download(path: string, name: string): Promise<void> {
  const twin = encodeURIComponent(state.twin.value?.id ?? '');
  const headers = { authorization: `Bearer ${state.session.value?.token ?? ''}` };
  const response = await fetch(`/api/v1/${twin}${path}`, { headers }).catch(() => null);
  if (!response?.ok) {
    state.say(response ? `The server answered ${response.status}.` : 'The server cannot be reached.', 'bad');
    return;
  }
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A photo as something an `img` can show; the caller gives it back. */
export async function photoUrl(id: string): Promise<string | null> {
  const twin = encodeURIComponent(state.twin.value?.id ?? '');
  const headers = { authorization: `Bearer ${state.session.value?.token ?? ''}` };
  const response = await fetch(`/api/v1/${twin}/photo/${encodeURIComponent(id)}`, { headers }).catch(
    () => null,
  );
  return response?.ok ? URL.createObjectURL(await response.blob()) : null;
}
