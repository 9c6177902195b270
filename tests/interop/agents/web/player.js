// Does what client_scenarios.py asks for, in a window, a worker or a service worker: MQTT.js over WebTransport, or over
// WebSocket because WebTransport fails.

import mqtt from './mqtt.esm.js';
import { fromConfig, webtransport } from './fulmar-web.js';

const clients = new Map();
const existing = globalThis.WebTransport;

const base64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const failure = (kind, reason, text) => Object.assign(new Error(text), { kind, reason });

function shown({ topic, payload, qos, retain, dup, properties = {} }) {
  const found = { topic, payload: base64(payload), qos, retain, dup };
  if (properties.contentType !== undefined) found.content_type = properties.contentType;
  if (properties.responseTopic !== undefined) found.response_topic = properties.responseTopic;
  if (properties.correlationData !== undefined) found.correlation_data = base64(properties.correlationData);
  if (properties.messageExpiryInterval !== undefined) found.expiry_s = properties.messageExpiryInterval;
  const pairs = Object.entries(properties.userProperties ?? {});
  if (pairs.length > 0) found.user_properties = pairs.flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  return found;
}

function propertiesOf({ content_type, response_topic, correlation_data, expiry_s, user_properties = [] }) {
  const properties = {};
  if (content_type !== undefined) properties.contentType = content_type;
  if (response_topic !== undefined) properties.responseTopic = response_topic;
  if (correlation_data !== undefined) properties.correlationData = bytesOf(correlation_data);
  if (expiry_s !== undefined) properties.messageExpiryInterval = expiry_s;
  for (const [name, value] of user_properties) ((properties.userProperties ??= {})[name] ??= []).push(value);
  return properties;
}

function settle(resolve, reject) {
  return (error, result) => {
    if (!error) resolve(result);
    else if (/disconnecting|closed/i.test(error.message)) reject(failure('closed', -1, error.message));
    else reject(failure(error.code > 127 ? 'refused' : 'other', error.code ?? -1, error.message));
  };
}

const doing = {
  async connect({ client: name, url, options }) {
    const transports = [];
    const how = new URL(url).protocol;
    const over = how === 'webtransport:' ? 'webtransport' : 'websocket';
    // Otherwise it is tried at the port of the WebSocket, where nothing listens for QUIC.
    const server = { 'webtransport:': fromConfig(), 'hanging:': () => new Promise(() => {}) }[how];
    globalThis.WebTransport = how === 'missing:' ? undefined : existing;
    const { will } = options;
    const made = mqtt.connect(options.websocket, {
      ...webtransport({ server, deadlineMs: how === 'hanging:' ? 100 : 3000, onTransport: (transport) => transports.push(transport) }),
      protocolVersion: 5,
      clientId: options.client_id,
      username: options.username,
      password: options.password,
      clean: !(options.resume || options.session_expiry_s),
      keepalive: options.keep_alive_s ?? 60,
      reconnectPeriod: 200,
      properties: { sessionExpiryInterval: options.session_expiry_s ?? 0 },
      ...(will && { will: { ...will, payload: bytesOf(will.payload) } }),
    });
    const client = { made, received: [], waiting: [], over, transports };
    made.on('message', (topic, payload, packet) => {
      client.received.push({ ...packet, payload });
      deliver(client);
    });
    made.on('error', () => {});
    if (!options.offline)
      await new Promise((resolve, reject) => {
        const fail = (error) => {
          made.end(true);
          reject(failure('refused', error?.code ?? -1, error?.message ?? 'cannot connect'));
        };
        made.once('connect', () => {
          made.off('error', fail).off('close', fail);
          resolve();
        });
        made.once('error', fail).once('close', fail);
      });
    if (!options.offline && transports.at(-1) !== over)
      throw failure('other', -1, `the connection is over ${transports.at(-1)}, not ${over}`);
    clients.set(name, client);
  },

  publish: ({ client, topic, payload, qos, retain, ...rest }) =>
    new Promise((resolve, reject) => {
      const options = { qos, retain, properties: propertiesOf(rest) };
      clients.get(client).made.publish(topic, bytesOf(payload), options, settle(() => resolve(null), reject));
    }),

  publish_numbers({ client, topic, qos, first, count }) {
    const { made } = clients.get(client);
    const numbers = Array.from({ length: count }, (_, index) => String(first + index));
    const publish = (text) => new Promise((resolve, reject) => made.publish(topic, text, { qos }, settle(resolve, reject)));
    return Promise.all(numbers.map(publish)).then(() => null);
  },

  subscribe: ({ client, filter, qos }) =>
    new Promise((resolve, reject) =>
      clients.get(client).made.subscribe(filter, { qos }, settle((granted) => resolve(granted[0].qos), reject)),
    ),

  unsubscribe: ({ client, filter }) =>
    new Promise((resolve, reject) => clients.get(client).made.unsubscribe(filter, settle(() => resolve(null), reject))),

  receive: ({ client, count }) =>
    new Promise((resolve, reject) => {
      clients.get(client).waiting.push({ count, resolve, reject });
      deliver(clients.get(client));
    }),

  // As MQTT.js would have the socket, where it would not get as far.
  socket_events: ({ url, protocols }) =>
    new Promise((resolve) => {
      const events = [];
      const socket = webtransport({ server: () => Promise.reject(new Error('none')) }).createWebsocket(url, protocols);
      socket.addEventListener('error', () => events.push('error'));
      socket.addEventListener('close', () => resolve([...events, 'close']));
    }),

  async close({ client: name }) {
    const client = clients.get(name);
    for (const { reject } of client.waiting.splice(0)) reject(failure('closed', -1, 'the client is closed'));
    if (!client.made.disconnecting) await client.made.endAsync();
    return null;
  },
};

function deliver({ received, waiting }) {
  while (waiting.length > 0 && received.length >= waiting[0].count) {
    const { count, resolve } = waiting.shift();
    resolve(received.splice(0, count).map(shown));
  }
}

/** The answer to a request. */
export async function play({ id, do: what, ...rest }) {
  try {
    return { id, result: await doing[what](rest) };
  } catch (error) {
    return { id, error: { kind: error.kind ?? 'other', reason: error.reason ?? -1, text: String(error.message ?? error) } };
  }
}

// In a worker or service worker, requests come as messages; a window calls.
if (typeof document === 'undefined')
  addEventListener('message', (event) => {
    const answered = play(event.data).then((answer) => event.ports[0].postMessage(answer));
    event.waitUntil?.(answered);
  });
