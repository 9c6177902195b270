import type { IClientOptions } from 'mqtt';

/** A server's address for WebTransport. */
export interface Server {
  /** `https://HOST:PORT/PATH`; that of the WebSocket unless given. */
  url?: string;
  /** SHA-256 of certificates that no CA has signed, in base64 or as bytes: the browser then accepts these and no others. */
  certificateHashes?: readonly (string | BufferSource)[];
}

export type Transport = 'webtransport' | 'websocket';

export interface Options {
  /** The server, or a function that is called for each connection: certificates and their hashes change. */
  server?: Server | (() => Server | Promise<Server>);
  /** Longest time for WebTransport to open, 5,000 ms unless given; after that, the connection uses WebSocket. */
  deadlineMs?: number;
  /** Time after a failure of WebTransport in which connections use WebSocket at once, 60,000 ms unless given. */
  retryMs?: number;
  /** Is called with the transport of each connection. */
  onTransport?: (transport: Transport) => void;
}

/**
 * Options for MQTT.js that make its connections use WebTransport, or WebSocket where that is missing or fails:
 *
 *     mqtt.connect('wss://broker.example.org:8443/mqtt', { ...webtransport(), username: 'ann', password: '…' });
 */
export function webtransport(options?: Options): Pick<IClientOptions, 'createWebsocket' | 'forceNativeWebSocket'>;

/** A `server` that Fulmar's `GET /api/v1/config` describes, for pages of the broker's own origin or of one that passes it on. */
export function fromConfig(url?: string): () => Promise<Server>;
