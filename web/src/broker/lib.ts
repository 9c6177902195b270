// Units and rates of the broker's page. No state.

import { decimal } from '../lib/format';
import type { Certificate, History, Overview, Upstream } from './types';

const KEEP_MS = 3_600_000;
/** The history has one every five seconds; more would only be slower to draw. */
const APART_MS = 4500;
const DAY_MS = 86_400_000;
const OLD_MS = 30_000;
/** A certificate that ends within this time wants attention, unless the server replaces it. */
const SOON_MS = 21 * DAY_MS;

/** Counters at one time. */
export interface Sample {
  atMs: number;
  connections: number;
  received: number;
  sent: number;
  bytesReceived: number;
  bytesSent: number;
  dropped: number;
}

export function sample(overview: Overview): Sample {
  const of = (name: string) => overview.counters[name] ?? 0;
  return {
    atMs: overview.now_ms,
    connections: total(overview.connections),
    received: of('messages_received'),
    sent: of('messages_sent'),
    bytesReceived: of('bytes_received'),
    bytesSent: of('bytes_sent'),
    dropped: of('messages_dropped_qos0') + of('messages_dropped_queue'),
  };
}

export function fromHistory(history: History): Sample[] {
  return history.at_ms.map((atMs, at) => ({
    atMs,
    connections: history.connections[at] ?? 0,
    received: history.messages_received[at] ?? 0,
    sent: history.messages_sent[at] ?? 0,
    bytesReceived: history.bytes_received[at] ?? 0,
    bytesSent: history.bytes_sent[at] ?? 0,
    dropped: history.messages_dropped[at] ?? 0,
  }));
}

/** The last sample is the newest one; of those before, one every five seconds stays, for an hour. */
export function withSample(known: readonly Sample[], next: Sample): Sample[] {
  const last = known.at(-1);
  // The broker has started again: its counters have too.
  if (last && (next.atMs <= last.atMs || next.received < last.received)) return [next];
  const before = known.at(-2);
  const isClose = last && before && last.atMs - before.atMs < APART_MS;
  const kept = (isClose ? known.slice(0, -1) : known).filter((one) => next.atMs - one.atMs <= KEEP_MS);
  return [...kept, next];
}

/** Per second, between each sample and the one before. */
export function rates(samples: readonly Sample[], of: (sample: Sample) => number): (number | null)[] {
  return samples.map((one, at) => {
    const before = samples[at - 1];
    if (!before || one.atMs <= before.atMs) return null;
    return Math.max(0, ((of(one) - of(before)) * 1000) / (one.atMs - before.atMs));
  });
}

/** Per second over the last few seconds; null until there are two samples. */
export function rateNow(samples: readonly Sample[], of: (sample: Sample) => number): number | null {
  return rates(samples.slice(-2), of)[1] ?? null;
}

export function total(parts: Record<string, number>): number {
  return Object.values(parts).reduce((sum, one) => sum + one, 0);
}

export function bytes(count: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let [value, unit] = [count, 0];
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${decimal(value, value < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

export function milliseconds(us: number): string {
  const ms = us / 1000;
  return `${decimal(ms, ms < 10 ? 1 : 0)} ms`;
}

/** Paths in use are measured every few seconds, idle ones are not: an old value has its age. */
export function rtt({ rtt_us, measured_ms }: { rtt_us: number; measured_ms: number }, nowMs: number): string {
  const age = nowMs - measured_ms;
  return age < OLD_MS ? milliseconds(rtt_us) : `${milliseconds(rtt_us)}, ${duration(age)} ago`;
}

/** A share of 0 to 1. */
export function share(value: number): string {
  return `${decimal(value * 100, value < 0.1 ? 1 : 0)} %`;
}

export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} days`;
}

const NAMES: Record<string, string> = {
  tcp: 'TCP',
  tls: 'TLS',
  ws: 'WebSocket',
  wss: 'WebSocket (TLS)',
  quic: 'QUIC',
  webtransport: 'WebTransport',
  coap: 'CoAP',
  coaps: 'CoAP (DTLS)',
  'mqtt-sn': 'MQTT-SN',
  mqtt: 'TCP',
  mqtts: 'TLS',
};

export function transportName(transport: string): string {
  return NAMES[transport] ?? transport;
}

export const TRANSPORTS = ['tcp', 'tls', 'ws', 'wss', 'quic', 'webtransport', 'coap', 'coaps', 'mqtt-sn'];

export type Urgency = 'good' | 'warn' | 'bad';

export function certificateUrgency({ expires_ms, is_renewed }: Certificate, nowMs: number): Urgency {
  const left = expires_ms - nowMs;
  if (left <= 0) return 'bad';
  // One that the server replaces may be short-lived: then it is replaced in time.
  return left < SOON_MS && !is_renewed ? 'warn' : 'good';
}

export function upstreamName({ name }: Upstream): string {
  return name ?? 'Upstream broker';
}
