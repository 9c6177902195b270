// The service worker: keeps the app itself, so that it opens without any network, and sends the outbox
// when the browser says that there is one again (Background Sync). Answers of the API are never kept
// here; what must be seen offline is in the device's store.

import { openDatabase } from './data/db';
import { uploadAlone } from './data/upload';
import type { Session } from './types';

const worker = self as unknown as ServiceWorkerGlobalScope;
const CACHE = `app-${__BUILD__}`;
const SYNC_TAG = 'fulmar-outbox';
const START = '/index.html';

worker.addEventListener('install', (event) => {
  event.waitUntil(install());
});

async function install(): Promise<void> {
  const cache = await caches.open(CACHE);
  // What has a hash in its name may come from the browser's cache; the rest must be new.
  await cache.addAll(
    __PRECACHE__.map(
      (path) => new Request(path, { cache: path.startsWith('/assets/') ? 'default' : 'reload' }),
    ),
  );
}

worker.addEventListener('activate', (event) => {
  event.waitUntil(activate());
});

async function activate(): Promise<void> {
  for (const name of await caches.keys()) if (name !== CACHE) await caches.delete(name);
  await worker.clients.claim();
}

worker.addEventListener('message', (event) => {
  if (event.data === 'activate') void worker.skipWaiting();
});

worker.addEventListener('fetch', (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== 'GET' || url.origin !== worker.location.origin) return;
  if (request.mode === 'navigate') {
    if (isApi(url.pathname)) return;
    event.respondWith(kept(START, request));
  } else if (__PRECACHE__.includes(url.pathname)) {
    event.respondWith(kept(url.pathname, request));
  }
});

/** What is opened as a page but is no part of the app: exports, documents. */
function isApi(path: string): boolean {
  return path.startsWith('/api/') || path === '/mqtt';
}

async function kept(path: string, request: Request): Promise<Response> {
  const cache = await caches.open(CACHE);
  return (await cache.match(path)) ?? fetch(request);
}

worker.addEventListener('sync', (event) => {
  const sync = event as ExtendableEvent & { tag: string };
  if (sync.tag === SYNC_TAG) sync.waitUntil(send());
});

/** Throws when something is left, so that the browser tries again. */
async function send(): Promise<void> {
  const db = await openDatabase();
  try {
    const session = (await db.get('kv', 'session')) as Session | undefined;
    const device = (await db.get('kv', 'device')) as string | undefined;
    if (!session || !device) return;
    const report = await uploadAlone(db, { user: session.user.name, token: session.token, device });
    for (const client of await worker.clients.matchAll()) client.postMessage('outbox-sent');
    if (report?.stopped?.isTemporary) throw report.stopped;
  } finally {
    db.close();
  }
}
