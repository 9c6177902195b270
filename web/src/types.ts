// What the platform's API says and takes (docs/api.md, /api/v1/openapi.json), as types. No behaviour.

export interface Place {
  lat: number;
  lon: number;
}

export type Role = 'admin' | 'office' | 'reader' | 'device' | 'viewer';

export interface TwinRole {
  id: string;
  name: string;
  role: Role;
  /** What it is about; meters, unless it says otherwise. */
  kind?: 'meters' | 'homes';
}

export interface User {
  name: string;
  display_name: string | null;
  role?: string;
  /** An admin of the server operates the broker too. */
  server_admin?: boolean;
  twins: TwinRole[];
}

export interface Session {
  token: string;
  expires_at: string;
  user: User;
}

export interface Config {
  version: string;
  title?: string;
  mqtt?: {
    webtransport?: { url: string; certificate_hashes: string[] } | null;
    websocket?: { url: string } | null;
  } | null;
  /** Without a platform, the app is the broker's page. Absent on servers before that page. */
  platform?: boolean;
  demo?: { user?: string; password?: string; [key: string]: unknown } | null;
}

export type Medium = 'water' | 'warm_water' | 'heat' | 'gas' | 'electricity' | 'heat_cost' | 'other';
export type Method = 'manual' | 'photo' | 'radio';
/** What shows that the meter sent what came by radio. */
export type Protection = 'unauthenticated' | 'encrypted' | 'authenticated';
export type MeterState = 'ok' | 'missed' | 'leak_suspected';

export interface Meter {
  id: string;
  address: string | null;
  serial: string | null;
  manufacturer: string | null;
  medium: Medium;
  place: Place | null;
  street: string | null;
  unit: string;
  register_digits: number | null;
  radio: boolean;
  has_key: boolean;
  note: string | null;
  expected: { low: number; high: number } | null;
  last: { value: number; unit: string; at: string; method: Method; protection?: Protection | null } | null;
  state: MeterState;
  etag?: string;
}

export interface Reading {
  id: string;
  meter: string;
  at: string;
  value: number;
  unit: string;
  method: Method;
  protection?: Protection | null;
  doubt?: string | null;
  photo: string | null;
  place: Place | null;
  rssi_dbm?: number | null;
  note: string | null;
  implausible_confirmed: boolean;
  work_list: string | null;
  reader?: string | null;
  device?: string | null;
  received_at?: string | null;
  conflict_with?: string[];
  flags?: string[];
  /** What was sent, if that has been corrected. */
  original?: { value: number; at: string } | null;
  /** What was done to it last. */
  changed?: { action: string; by: string; at: string; reason: string | null } | null;
  etag?: string;
}

/** An exchange of a meter. */
export interface Exchange {
  id: string;
  at: string;
  /** The last value of the old register. */
  final: number;
  /** The value that the new register showed first. */
  first: number;
  old_serial: string | null;
  new_serial: string | null;
  note: string | null;
  entered_by: string;
  /** Set if it was taken back. */
  withdrawn_by: string | null;
  withdrawn_at: string | null;
}

export type TaskState = 'open' | 'read' | 'unreachable';

export interface Task {
  meter: Meter;
  state: TaskState;
  reading: Reading | null;
  note: string | null;
}

export interface WorkList {
  id: string;
  name: string;
  assignee: string | null;
  state: 'open' | 'done';
  due: string | null;
  total: number;
  done: number;
  etag?: string;
  tasks?: Task[];
}

export interface Frame {
  id: string;
  hex: string;
  mode?: string;
  at: string;
  rssi_dbm: number | null;
  place: Place | null;
}

export interface Telemetry {
  id: string;
  at: string;
  place: Place | null;
  accuracy_m: number | null;
  speed_mps: number | null;
  battery_percent: number | null;
  charging: boolean | null;
  network: string | null;
}

export type ResultStatus = 'stored' | 'duplicate' | 'conflict' | 'rejected';

export interface Result {
  id: string;
  status: ResultStatus;
  detail?: string | null;
}

/** A meter was heard on the radio: who, when, how well and where, never the value. */
export interface Heard {
  meter: string;
  address: string | null;
  manufacturer: string | null;
  medium: string | null;
  at: string;
  rssi_dbm: number | null;
  place: Place | null;
  receiver: string | null;
}

export interface Page<T> {
  items: T[];
  next: string | null;
}

export interface Instance {
  device: string;
  kind: string;
  name: string | null;
  app_version: string | null;
  seen_at: string | null;
  /** What it told last. */
  telemetry: Telemetry | null;
}

export interface Command {
  id: string;
  command: string;
  args: unknown;
  state: 'pending' | 'accepted' | 'done' | 'failed';
  detail: string | null;
  at?: string;
}

export interface ConsumptionPoint {
  at: string;
  /** Null in a gap: no reading is near enough. */
  value: number | null;
  consumption: number | null;
}

/** A meter that a work list missed, of `/report/missed`. */
export interface MissedReport {
  meter: Meter;
  work_list: Pick<WorkList, 'id' | 'name' | 'assignee' | 'state' | 'due'>;
  state: TaskState;
  note: string | null;
}

/** A meter whose flow does not pause, of `/report/leaks`. */
export interface LeakReport {
  meter: Meter;
  since: string;
  least_per_hour: number | null;
}
