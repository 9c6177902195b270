// A receiver at this device's USB port (Web Serial): what it hears is shown at once and goes into the
// outbox, encrypted as it came; the server decrypts.

import { signal } from '@preact/signals';
import { item, type Item } from '../data/outbox';
import { submit } from '../data/sync';
import { hear } from '../live/heard';
import * as state from '../state';
import { toHex } from './bytes';
import { FrameError, meterOf } from './link';
import type { Received } from './lines';
import { Stream } from './stream';

/** The same frame is stored again only after so long: meters send every few seconds. */
const SAME_AFTER_MS = 60_000;
const STORE_EVERY_MS = 2000;

interface SerialPort {
  open(options: { baudRate: number }): Promise<void>;
  close(): Promise<void>;
  readable: ReadableStream<Uint8Array> | null;
}

export const receiver = signal<{ frames: number; wrong: number; problem: string | null } | null>(null);
export const canReceive = 'serial' in navigator;

let port: SerialPort | null = null;
let waiting: Item[] = [];
const stored = new Map<string, number>();

export async function startReceiver(baudRate: number): Promise<void> {
  const { serial } = navigator as unknown as { serial: { requestPort(): Promise<SerialPort> } };
  try {
    port = await serial.requestPort();
    await port.open({ baudRate });
  } catch (error) {
    // No port chosen is no problem.
    if (error instanceof DOMException && error.name === 'NotFoundError') return;
    receiver.value = {
      frames: 0,
      wrong: 0,
      problem: 'The port cannot be opened. Is another program using it?',
    };
    return;
  }
  receiver.value = { frames: 0, wrong: 0, problem: null };
  const timer = setInterval(store, STORE_EVERY_MS);
  await read(port).catch(() => undefined);
  clearInterval(timer);
  store();
  const last = receiver.peek();
  if (port && last) receiver.value = { ...last, problem: 'The receiver was disconnected.' };
}

export async function stopReceiver(): Promise<void> {
  const old = port;
  port = null;
  receiver.value = null;
  await old?.close().catch(() => undefined);
}

async function read(from: SerialPort): Promise<void> {
  const stream = new Stream();
  const reader = from.readable?.getReader();
  while (reader && port) {
    const { value, done } = await reader.read();
    if (done) break;
    let wrong = 0;
    const frames = stream.feed(value, () => (wrong += 1));
    for (const received of frames) take(received);
    const before = receiver.peek();
    if (before)
      receiver.value = { ...before, frames: before.frames + frames.length, wrong: before.wrong + wrong };
  }
  reader?.releaseLock();
  await from.close().catch(() => undefined);
}

function take({ frame, mode, rssiDbm }: Received): void {
  let sender;
  try {
    sender = meterOf(frame);
  } catch (error) {
    if (error instanceof FrameError) return;
    throw error;
  }
  const now = Date.now();
  const at = new Date(now).toISOString();
  const place = state.position.value?.place ?? null;
  const meter = meterByAddress(sender.address);
  const { address, manufacturer } = sender;
  hear({
    meter: meter ?? address,
    address,
    manufacturer,
    medium: null,
    at,
    rssi_dbm: rssiDbm,
    place,
    receiver: state.device.value,
  });
  if (!meter || now - (stored.get(meter) ?? 0) < SAME_AFTER_MS) return;
  stored.set(meter, now);
  const id = crypto.randomUUID();
  const owner = { user: state.user.value?.name ?? '', twin: state.twin.value?.id ?? '' };
  const payload = { id, hex: toHex(frame), at, rssi_dbm: rssiDbm, place, ...(mode ? { mode } : {}) };
  waiting.push(item(id, owner, { kind: 'frame', frame: payload, meter }, now));
}

function store(): void {
  if (waiting.length === 0) return;
  const items = waiting;
  waiting = [];
  void submit(items);
}

let index: { of: unknown; byAddress: Map<string, string> } | null = null;

function meterByAddress(address: string): string | undefined {
  const meters = state.meters.peek();
  if (index?.of !== meters) {
    const known = [...meters.values()].filter((meter) => meter.address);
    index = {
      of: meters,
      byAddress: new Map(known.map((meter) => [radioKey(meter.address ?? ''), meter.id])),
    };
  }
  return index.byAddress.get(radioKey(address));
}

/** Manufacturer and number tell meters apart; version and type need not be known. */
function radioKey(address: string): string {
  return address.toLowerCase().split('-').slice(0, 2).join('-');
}
