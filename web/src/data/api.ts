// Requests to the platform's API, and its errors (RFC 9457) as one type. Knows no state: the token is
// passed in, because the service worker sends too.

const PREFIX = '/api/v1';
/** A phone at the edge of coverage: better to fail and try again than to hang. */
const TIMEOUT_MS = 30_000;
/** Shorter bodies fit in a packet as they are. */
const SHORT_LENGTH = 1024;

interface Fault {
  field?: string;
  detail?: string;
}

export class ApiError extends Error {
  override readonly name = 'ApiError';

  constructor(
    /** 0 when there was no answer at all. */
    readonly status: number,
    message: string,
    readonly retryAfterS: number | null = null,
    /** What is wrong with single values. */
    readonly errors: readonly Fault[] = [],
  ) {
    super(message);
  }

  /** The same request may succeed later, with nothing changed. */
  get isTemporary(): boolean {
    return (
      this.status === 0 ||
      this.status === 408 ||
      this.status === 425 ||
      this.status === 429 ||
      this.status >= 500
    );
  }
}

export interface Request {
  method?: string;
  /** Another API of the server than the platform's. */
  prefix?: string;
  /** The page's secret of a broker session; the browser adds the cookie (docs/administration.md). */
  session?: string | null;
  token?: string | null;
  json?: unknown;
  body?: Blob;
  ifMatch?: string | undefined;
  ifNoneMatch?: string | undefined;
}

export interface Answer<T> {
  status: number;
  etag: string | null;
  data: T;
}

/** `path` begins with `/`, below `/api/v1` or another prefix. A 304 has `data` null. */
export async function call<T>(path: string, request: Request = {}): Promise<Answer<T>> {
  const headers = new Headers({ accept: 'application/json' });
  if (request.session) headers.set('x-fulmar-session', request.session);
  if (request.token) headers.set('authorization', `Bearer ${request.token}`);
  if (request.ifMatch) headers.set('if-match', request.ifMatch);
  if (request.ifNoneMatch) headers.set('if-none-match', request.ifNoneMatch);
  let body: BodyInit | null = null;
  if (request.json !== undefined) {
    headers.set('content-type', 'application/json');
    body = JSON.stringify(request.json);
    const isLong = body.length > SHORT_LENGTH && request.prefix === undefined;
    if (isLong && 'CompressionStream' in globalThis) {
      headers.set('content-encoding', 'gzip');
      body = await compressed(body);
    }
  } else if (request.body) {
    headers.set('content-type', request.body.type);
    body = request.body;
  }
  const init: RequestInit = {
    method: request.method ?? 'GET',
    headers,
    body,
    cache: 'no-store',
    credentials: request.session === undefined ? 'omit' : 'same-origin',
    signal: AbortSignal.timeout(TIMEOUT_MS),
  };
  const url = (request.prefix ?? PREFIX) + path;
  let response = await send(url, init);
  // Sent in the first flight of a connection; the server asks for it after the handshake (RFC 8470).
  if (response.status === 425) response = await send(url, init);
  return answer<T>(response);
}

function compressed(text: string): Promise<Blob> {
  const parts = new Blob([text]).stream().pipeThrough(new CompressionStream('gzip'));
  return new Response(parts).blob();
}

async function send(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch {
    throw new ApiError(0, 'The server cannot be reached.');
  }
}

async function answer<T>(response: Response): Promise<Answer<T>> {
  const etag = response.headers.get('etag');
  if (response.status === 304) return { status: 304, etag, data: null as T };
  const isJson = /json/.test(response.headers.get('content-type') ?? '');
  let data: unknown = null;
  try {
    data = isJson ? await response.json() : null;
  } catch {
    throw new ApiError(0, 'The answer was incomplete.');
  }
  if (response.ok) return { status: response.status, etag, data: data as T };
  const seconds = Number(response.headers.get('retry-after'));
  throw problemOf(data, response.status, seconds > 0 ? seconds : null);
}

interface Problem {
  title?: string;
  detail?: string;
  errors?: Fault[];
}

/** What the screens call members of the API. */
const LABELS: Record<string, string> = {
  assignee: 'Reader',
  at: 'Read',
  due: 'Due',
  name: 'Name',
  reason: 'Reason',
};

/** An error from what the server answered, if it did so as RFC 9457 has it. */
export function problemOf(data: unknown, status: number, retryAfterS: number | null = null): ApiError {
  const problem = (data ?? {}) as Problem;
  return new ApiError(status, problemText(problem, status), retryAfterS, problem.errors ?? []);
}

function problemText({ title, detail, errors }: Problem, status: number): string {
  let text = detail ?? title ?? '';
  for (const { field, detail: wrong } of errors ?? []) {
    const [said, shown] = [field, LABELS[field ?? ''] ?? field].map((name) =>
      [name, wrong].filter(Boolean).join(': '),
    );
    // The server says it in its sentence already, by the API's name.
    text = text.includes(said ?? '') ? text.replace(said ?? '', shown ?? '') : `${text} ${shown}`.trim();
  }
  return text.charAt(0).toUpperCase() + text.slice(1) || `The server answered ${status}.`;
}

/** Follows `next` to the end, at most `most` items. */
export async function pages<T>(path: string, token: string, limit = 1000, most = 50_000): Promise<T[]> {
  const items: T[] = [];
  let cursor: string | null = null;
  do {
    const join: string = path.includes('?') ? '&' : '?';
    const next: string = cursor ? `&cursor=${encodeURIComponent(cursor)}` : '';
    const { data } = await call<{ items: T[]; next: string | null }>(`${path}${join}limit=${limit}${next}`, {
      token,
    });
    items.push(...data.items);
    cursor = data.next;
  } while (cursor && items.length < most);
  return items;
}
