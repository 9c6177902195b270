// What the administration API says and takes (docs/administration.md, /api/admin/v1/openapi.json), as types.

export type Role = 'viewer' | 'operator' | 'administrator';

export interface Me {
  name: string;
  role: Role;
}

export interface Begun extends Me {
  session: string;
  ends_in_s: number;
}

export interface PathStatistics {
  measured_ms: number;
  rtt_us: number;
  loss: number;
  sent_packets: number;
  lost_packets: number;
  sent_bytes: number;
  received_bytes: number;
  copies: number;
  cwnd_bytes: number;
  mtu_bytes: number;
  congestion_events: number;
  streams: number;
  migrations: number;
  early_data: boolean;
}

export interface Client {
  client: string;
  user?: string;
  address: string;
  transport: string;
  since_ms: number;
  subscriptions: number;
  queued_messages: number;
  queued_bytes: number;
  /** While the broker reads nothing from it. */
  waiting?: { cause: string; description: string; since_ms: number; age_ms: number };
  path?: PathStatistics;
}

/** A client that is worth looking at. */
export interface NamedClient {
  client: string;
  transport: string;
  queued_messages: number;
  queued_bytes: number;
  rtt_us?: number;
  loss?: number;
}

export interface Transport {
  transport: string;
  clients: number;
  queued_messages: number;
  queued_bytes: number;
  path?: {
    measured: number;
    rtt_median_us: number;
    rtt_95_us: number;
    loss: number;
    bad_paths: number;
    moved: number;
    early_data: number;
  };
}

export interface Upstream {
  name?: string;
  transport?: string;
  down_since_ms?: number;
  down_reason?: string;
  queued_messages: number;
  queued_bytes: number;
  oldest_ms?: number;
  sent: number;
  received: number;
  dropped: number;
  migrations: number;
  early_data: number;
  rtt_us?: number;
  problem: string;
}

export interface Certificate {
  name: string;
  expires_ms: number;
  is_renewed: boolean;
  /** Whether the server replaces it when it starts or reloads. */
  renewed_at_reload: boolean;
}

/** A part of a budget; some of the disk's have no limit. */
export interface Account {
  account: string;
  used_bytes: number;
  limit_bytes?: number;
}

export type Verdict = 'good' | 'warn' | 'bad';

export interface Overview {
  now_ms: number;
  /** Whether the server wants attention; the most urgent reason first. */
  health: { verdict: Verdict; reasons: { verdict: Verdict; text: string }[] };
  version: string;
  started_ms: number;
  sessions: number;
  connections: Record<string, number>;
  subscriptions: number;
  counters: Record<string, number>;
  retained_messages: number;
  retained_bytes: number;
  storage_backlog: number;
  storage_problem?: string;
  memory: Account[];
  quality: {
    ended_ms?: number;
    transports: Transport[];
    slowest: NamedClient[];
    worst_paths: NamedClient[];
  };
  server: {
    listeners: { name: string; address: string }[];
    upstreams: Upstream[];
    /** Only at a node of a cluster. */
    cluster?: Cluster;
    certificates: Certificate[];
    disk: Account[];
    disk_free_bytes?: number;
    resident_bytes?: number;
    processor_s: number;
  };
}

export interface ClusterNode {
  name: string;
  address: string;
  role: 'serving' | 'standing by' | 'gone';
  /** Absent for the node that serves. */
  position?: number;
  version: string;
}

export interface Cluster {
  node: string;
  nodes: ClusterNode[];
  is_connected: boolean;
  lease_ms: number;
  position: number;
  log_bytes: number;
  log_replicas: number;
  append_us: number;
  snapshot_ms?: number;
}

/** Columns, the oldest first; counters are since the broker started. */
export interface History {
  at_ms: number[];
  connections: number[];
  messages_received: number[];
  messages_sent: number[];
  bytes_received: number[];
  bytes_sent: number[];
  messages_dropped: number[];
}

export interface Session {
  client: string;
  user?: string;
  connected: boolean;
  durable: boolean;
  internal: boolean;
  version: number;
  expiry_interval_s: number;
  expires_ms?: number;
  subscriptions: number;
  queued_messages: number;
  queued_bytes: number;
  in_flight: number;
  will_topic?: string;
}

export interface SessionDetails extends Session {
  filters: { filter: string; qos: number; no_local: boolean; flow: number }[];
  flows: { flow: number; queued_messages: number; in_flight: number }[];
}

export interface Level {
  level: string;
  topic: string;
  has_message: boolean;
  has_levels: boolean;
}

export interface Retained {
  topic: string;
  qos: number;
  payload_bytes: number;
  expires_ms?: number;
  payload?: string;
  payload_base64?: string;
}

export interface TapLine extends Omit<Retained, 'expires_ms'> {
  at_ms: number;
  retain: boolean;
  dropped?: number;
}

/** An access rule of a role. */
export interface Rule {
  action: 'publish' | 'receive' | 'subscribe' | 'subscribe_literal' | 'unsubscribe' | 'unsubscribe_literal';
  topic: string;
  allow: boolean;
  priority: number;
}

/** A role for topics. */
export interface TopicRole {
  name: string;
  description?: string;
  rules: Rule[];
}

export interface Decision {
  allowed: boolean;
  because: string;
  rule?: string;
  user?: string;
  connected: boolean;
  notes: string[];
}
