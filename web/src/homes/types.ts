// What the platform's API says of homes, sensors, rules and alerts. No behaviour.

import type { Place } from '../types';

export type Worst = 'ok' | 'info' | 'warning' | 'critical';
export type Severity = 'info' | 'warning' | 'critical';

export interface HomeValue {
  device: string;
  quantity: string;
  value: number;
  unit: string;
  at: string;
  stale: boolean;
}

export interface Home {
  id: string;
  name: string;
  place: Place | null;
  street: string | null;
  note: string | null;
  gateway: string | null;
  devices: number;
  values: HomeValue[];
  worst: Worst;
  alerts: number;
  etag?: string;
}

export interface Sensor {
  device: string;
  home: string | null;
  room: string | null;
  model: string | null;
  quantities: string[];
  last_at: string | null;
  state: 'ok' | 'silent';
  expected_every_s: number | null;
  etag?: string;
}

export interface SeriesPoint {
  at: string;
  /** Null in a step without readings. */
  value: number | null;
  min: number | null;
  max: number | null;
  count: number;
}

export interface Series {
  device: string;
  quantity: string;
  unit: string;
  /** 0 when every reading is a point. */
  step_s: number;
  points: SeriesPoint[];
}

export interface Rule {
  id: string;
  name: string;
  /** Null for a rule about devices that are not heard of. */
  quantity: string | null;
  home: string | null;
  severity: Severity;
  above: number | null;
  below: number | null;
  clear: number | null;
  for_s: number;
  averaging_s: number;
  silent_s: number | null;
  source: string | null;
  enabled: boolean;
  etag?: string;
}

export interface Alert {
  id: string;
  rule: string;
  rule_name: string;
  home: string | null;
  home_name: string | null;
  device: string;
  /** Null when the device is not heard of. */
  quantity: string | null;
  severity: Severity;
  state: 'active' | 'acknowledged' | 'cleared';
  value: number | null;
  peak: number | null;
  unit: string | null;
  threshold: number | null;
  raised_at: string;
  /** Its readings came so late that it was known only later. */
  late?: boolean;
  cleared_at: string | null;
  acknowledged_at: string | null;
  acknowledged_by: string | null;
  note: string | null;
}

export interface Webhook {
  id: string;
  url: string;
  least_severity: Severity;
}

/** `fulmar/{twin}/value/{device}/{quantity}`. */
export interface LiveValue {
  device: string;
  home: string | null;
  quantity: string;
  value: number;
  unit: string;
  at: string;
}
