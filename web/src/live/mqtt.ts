// Live messages: meters that are heard, progress, where the vans are. MQTT over WebTransport where it
// works, else over WebSocket. Nothing depends on them: without them the same is fetched. What they say whole is used as
// it is; what they only hint at is asked for.

import type { MqttClient } from 'mqtt';
import { receive as receiveOfHomes } from '../homes/state';
import { loadConfig, refresh } from '../data/sync';
import * as state from '../state';
import { announced, forgetAnnounced } from '../data/readings';
import type { Command, Heard, Place, Reading, WorkList } from '../types';
import { hear } from './heard';
import { runCommand, runWaiting } from './commands';
import { TransportSocket, type Way } from './webtransport';

const RECONNECT_MS = 4000;
const KEEPALIVE_S = 30;
/** After so many WebTransport attempts without success WebSocket is tried, then WebTransport again. */
const TRIES = 2;
const REFRESH_SOON_MS = 3000;

let client: MqttClient | null = null;
let failures = 0;
let refreshTimer: ReturnType<typeof setTimeout> | undefined;

interface Target {
  user: string;
  token: string;
  twin: string;
  isOffice: boolean;
  isHomes: boolean;
  device: string;
}

export async function connect(target: Target): Promise<void> {
  await disconnect();
  forgetAnnounced();
  if (!state.config.value?.mqtt) return;
  state.live.value = 'connecting';
  const mqtt = await import('mqtt');
  let kind: 'webtransport' | 'websocket' = 'websocket';
  let wasConnected = false;
  client = mqtt.default.connect(websocketUrl(), {
    protocolVersion: 5,
    clientId: `${target.user}-${target.device}`,
    username: target.user,
    password: target.token,
    clean: true,
    keepalive: KEEPALIVE_S,
    reconnectPeriod: RECONNECT_MS,
    // Its own timers run in a worker made of a blob, which the page's policy forbids: no PINGREQ would ever
    // be sent, and the broker would end a connection over which nothing comes, as while a gateway is cut off.
    timerVariant: 'native',
    createWebsocket: (url: string, protocols: string[]) => {
      kind = canWebTransport() && failures % (TRIES + 1) < TRIES ? 'webtransport' : 'websocket';
      failures += 1;
      return kind === 'webtransport' ? new TransportSocket(way) : new WebSocket(url, protocols);
    },
  });
  client.on('connect', () => {
    failures = 0;
    state.live.value = kind;
    state.online.value = true;
    if (target.isHomes) return;
    // What was said meanwhile.
    if (wasConnected) void refresh();
    void runWaiting();
    wasConnected = true;
  });
  client.on('close', () => {
    if (client) state.live.value = 'connecting';
  });
  client.on('error', () => undefined);
  client.on('message', (topic, payload) => receive(target, topic, payload));
  client.subscribe(topics(target), { qos: 1 });
}

export async function disconnect(): Promise<void> {
  const old = client;
  client = null;
  state.live.value = 'off';
  await old?.endAsync(true);
}

function topics({ twin, isOffice, isHomes, device }: Target): string[] {
  const base = `fulmar/${twin}`;
  if (isHomes) return [`${base}/value/#`, `${base}/alert/#`];
  const all = [`${base}/heard/#`, `${base}/work_list/+`, `${base}/instance/${device}/command`];
  return isOffice
    ? [...all, `${base}/instance/+/position`, `${base}/reading/+`]
    : [...all, `${base}/instance/+/position`];
}

function canWebTransport(): boolean {
  return 'WebTransport' in window && Boolean(state.config.value?.mqtt?.webtransport);
}

/** The hashes of short-lived certificates change every few days: the newest are asked for. */
async function way(): Promise<Way> {
  await loadConfig();
  const known = state.config.value?.mqtt?.webtransport;
  if (!known) throw new Error('no WebTransport');
  return known;
}

function websocketUrl(): string {
  return state.config.value?.mqtt?.websocket?.url ?? `wss://${location.host}/mqtt`;
}

function receive(target: Target, topic: string, payload: Uint8Array): void {
  let message: unknown = null;
  try {
    if (payload.length > 0) message = JSON.parse(new TextDecoder().decode(payload));
  } catch {
    return;
  }
  if (typeof message !== 'object') return;
  const [kind, id, what] = topic.slice(`fulmar/${target.twin}/`.length).split('/');
  if (target.isHomes) receiveOfHomes(kind ?? '', message);
  if (message === null || target.isHomes) return;
  if (kind === 'heard') hear(message as Heard);
  else if (kind === 'work_list') progress(message as WorkList);
  else if (kind === 'reading') reading(message);
  else if (kind === 'instance' && what === 'position' && id) van(id, message);
  else if (kind === 'instance' && what === 'command') void runCommand(message as Command);
}

/** Its list has it at once; what the meter now is expected to show is the server's to say. */
function reading(message: Partial<Reading>): void {
  announced(message);
  refreshSoon();
}

/** The figures come with it; which tasks they are of does not. */
function progress({ id, done, total, etag }: WorkList): void {
  const known = state.lists.value.find((list) => list.id === id);
  if (known?.etag !== undefined && known.etag === etag) return;
  if (known && (known.done !== done || known.total !== total))
    state.lists.value = state.lists.value.map((list) => (list.id === id ? { ...list, done, total } : list));
  refreshSoon();
}

/** Many changes, one fetch. */
function refreshSoon(): void {
  refreshTimer ??= setTimeout(() => {
    refreshTimer = undefined;
    void refresh(false, true);
  }, REFRESH_SOON_MS);
}

function van(device: string, { place, at }: { place?: Place; at?: string }): void {
  if (!place) return;
  state.vans.value = new Map(state.vans.value).set(device, { place, at: at ?? new Date().toISOString() });
}
