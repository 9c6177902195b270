// The reader's position while a screen that needs it is open, and the route as telemetry in the outbox.

import { isWorthKeeping, type Fix } from '../lib/motion';
import * as state from '../state';
import { item, put, thin } from './outbox';
import { database, flush, showOutbox } from './sync';

const SEND_EVERY_MS = 60_000;

let watch: number | null = null;
let kept: Fix | null = null;

/** Asks for the position, once; the browser asks the reader. */
export function followPosition(): void {
  if (watch !== null || !('geolocation' in navigator)) return;
  const onFix = ({ coords, timestamp }: GeolocationPosition) => {
    const place = { lat: coords.latitude, lon: coords.longitude };
    const fix: Fix = { place, accuracyM: coords.accuracy, speedMps: coords.speed, at: timestamp };
    state.position.value = fix;
    void keepFix(fix);
  };
  const onError = (error: GeolocationPositionError) => {
    if (error.code === error.PERMISSION_DENIED) stopFollowing();
  };
  watch = navigator.geolocation.watchPosition(onFix, onError, { enableHighAccuracy: true, maximumAge: 5000 });
  setInterval(() => void flush(), SEND_EVERY_MS);
}

function stopFollowing(): void {
  if (watch !== null) navigator.geolocation.clearWatch(watch);
  watch = null;
  state.position.value = null;
}

interface Battery {
  level: number;
  charging: boolean;
}

async function keepFix(fix: Fix): Promise<void> {
  const [user, twin] = [state.user.value, state.twin.value];
  if (!user || !twin || !state.keepRoute.value || !state.mayWrite.value) return;
  if (!isWorthKeeping(kept, fix)) return;
  kept = fix;
  const extra = navigator as unknown as {
    getBattery?: () => Promise<Battery>;
    connection?: { effectiveType?: string };
  };
  const battery = await extra.getBattery?.().catch(() => null);
  const telemetry = {
    id: crypto.randomUUID(),
    at: new Date(fix.at).toISOString(),
    place: fix.place,
    accuracy_m: Math.round(fix.accuracyM),
    speed_mps: fix.speedMps,
    battery_percent: battery ? Math.round(battery.level * 100) : null,
    charging: battery?.charging ?? null,
    network: extra.connection?.effectiveType ?? null,
  };
  const owner = { user: user.name, twin: twin.id };
  const db = await database();
  await put(db, [item(telemetry.id, owner, { kind: 'telemetry', telemetry }, Date.now())]);
  await thin(db);
  await showOutbox();
}
