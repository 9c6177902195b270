// MQTT over WebTransport for MQTT.js: a stream dressed as a WebSocket, which MQTT.js can use, and a WebSocket where
// WebTransport is missing or fails. For windows, workers and service workers.

/** Longest time for a session of WebTransport to open, unless given. */
const DEADLINE_MS = 5000;
/** Time after a failure of WebTransport in which connections use WebSocket at once, unless given. */
const RETRY_MS = 60_000;
/** Longest time for the last bytes, such as DISCONNECT, to be sent. */
const CLOSE_MS = 2000;

/** Options for `mqtt.connect()`; see index.d.ts. */
export function webtransport(options = {}) {
  const { server, deadlineMs = DEADLINE_MS, retryMs = RETRY_MS, onTransport = () => {} } = options;
  let avoidUntil = 0;
  const canTry = () => typeof WebTransport === 'function' && Date.now() >= avoidUntil;
  return {
    forceNativeWebSocket: true,
    createWebsocket(url, protocols) {
      const open = canTry() ? () => openTransport(url, server, deadlineMs) : undefined;
      let failed = false;
      return new Socket({
        url,
        protocols,
        open,
        onFailure: () => (failed = true),
        onTransport(transport) {
          // A server that is away altogether says nothing about WebTransport.
          if (failed && transport === 'websocket') avoidUntil = Date.now() + retryMs;
          onTransport(transport);
        },
      });
    },
  };
}

/** The server's address and certificate hashes as Fulmar gives them to its own pages; see index.d.ts. */
export function fromConfig(url = '/api/v1/config') {
  return async () => {
    const answer = await fetch(url, { cache: 'no-store' });
    if (!answer.ok) throw new Error(`${url} answers ${answer.status}`);
    const found = (await answer.json()).mqtt?.webtransport;
    if (!found) throw new Error(`${url} has no WebTransport`);
    return { url: found.url, certificateHashes: found.certificate_hashes };
  };
}

/** Opens a session and its stream before the deadline. */
async function openTransport(websocketUrl, server, deadlineMs) {
  let session;
  let timer;
  const opening = (async () => {
    const { url, certificateHashes = [] } = (await (typeof server === 'function' ? server() : server)) ?? {};
    const hashes = certificateHashes.map((hash) => ({ algorithm: 'sha-256', value: bytesOf(hash) }));
    session = new WebTransport(
      url ?? websocketUrl.replace(/^ws/, 'http'),
      hashes.length > 0 ? { serverCertificateHashes: hashes } : {},
    );
    session.closed.catch(() => {});
    await session.ready;
    return { session, stream: await session.createBidirectionalStream() };
  })();
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no WebTransport within ${deadlineMs} ms`)), deadlineMs);
  });
  try {
    return await Promise.race([opening, late]);
  } catch (error) {
    // One that opens too late, too.
    void opening.catch(() => {}).finally(() => end(session));
    end(session);
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

function end(session) {
  try {
    session?.close();
  } catch {
    // It has never been open.
  }
}

function bytesOf(hash) {
  return typeof hash === 'string' ? Uint8Array.from(atob(hash), (letter) => letter.charCodeAt(0)) : hash;
}

/** What MQTT.js uses of a WebSocket, over a stream of WebTransport or a WebSocket. */
class Socket extends EventTarget {
  CONNECTING = 0;
  OPEN = 1;
  CLOSING = 2;
  CLOSED = 3;
  readyState = 0;
  binaryType = 'arraybuffer';
  #pendingBytes = 0;
  #session;
  #writer;
  #socket;

  constructor(how) {
    super();
    void this.#start(how);
  }

  async #start({ url, protocols, open, onFailure, onTransport }) {
    let opened;
    try {
      opened = await open?.();
    } catch {
      onFailure();
    }
    if (this.readyState !== this.CONNECTING) end(opened?.session);
    else if (opened) await this.#overTransport(opened, onTransport);
    else this.#overWebSocket(url, protocols, onTransport);
  }

  async #overTransport({ session, stream }, onTransport) {
    this.#session = session;
    this.#writer = stream.writable.getWriter();
    this.#opened('webtransport', onTransport);
    try {
      const reader = stream.readable.getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        this.#message(value.buffer.slice(value.byteOffset, value.byteOffset + value.byteLength));
      }
    } catch {
      // The connection was lost, or closed here.
    }
    this.#finish();
  }

  #overWebSocket(url, protocols, onTransport) {
    let socket;
    try {
      socket = new WebSocket(url, protocols);
    } catch {
      // Such as ws: on a page by https:.
      this.dispatchEvent(new Event('error'));
      this.#finish();
      return;
    }
    this.#socket = socket;
    socket.binaryType = 'arraybuffer';
    socket.addEventListener('open', () => this.#opened('websocket', onTransport));
    socket.addEventListener('message', ({ data }) => this.#message(data));
    socket.addEventListener('error', () => this.dispatchEvent(new Event('error')));
    socket.addEventListener('close', () => this.#finish());
  }

  #opened(transport, onTransport) {
    this.readyState = this.OPEN;
    onTransport(transport);
    this.dispatchEvent(new Event('open'));
  }

  #message(data) {
    this.dispatchEvent(new MessageEvent('message', { data }));
  }

  get bufferedAmount() {
    return this.#socket?.bufferedAmount ?? this.#pendingBytes;
  }

  send(data) {
    if (this.#socket) {
      this.#socket.send(data);
      return;
    }
    // The stream reads it later.
    const bytes = new Uint8Array(data).slice();
    this.#pendingBytes += bytes.byteLength;
    this.#writer?.write(bytes).then(
      () => (this.#pendingBytes -= bytes.byteLength),
      () => this.#finish(),
    );
  }

  close() {
    if (this.readyState >= this.CLOSING) return;
    this.readyState = this.CLOSING;
    if (this.#socket) {
      this.#socket.close();
      return;
    }
    if (!this.#writer) {
      this.#finish();
      return;
    }
    // What was written last goes out first.
    const late = setTimeout(() => this.#finish(), CLOSE_MS);
    void this.#writer
      .close()
      .catch(() => {})
      .finally(() => {
        clearTimeout(late);
        this.#finish();
      });
  }

  #finish() {
    if (this.readyState === this.CLOSED) return;
    this.readyState = this.CLOSED;
    end(this.#session);
    this.dispatchEvent(new CloseEvent('close'));
  }
}
