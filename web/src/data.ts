// The data that the server sends, and the connection over which it arrives.
import { useEffect, useState } from "preact/hooks";

export interface Tenant {
  name: string;
  slot: number;
  generation: number;
  gpu: number;
  kind: "online" | "offline";
  priority: number;
  phase: string;
  why: string;
  connected: boolean;
  paused: boolean;
  restarts: number;
  pid: number;
  uid: number;
  command: string;
  age_s: number;
  limit: string;
  quota_bytes: number;
  slo_ns: number;
  state: string;
  launches_per_s: number;
  device_ppm: number;
  filled_ppm?: number;
  filled_of_idle_ppm?: number | null;
  waits_per_s?: number;
  waited_ppm: number;
  waited_p99_ns?: number;
  overrun_ppm?: number;
  spun_ppm?: number;
  held_bytes: number;
  measured_bytes?: number | null;
  denied?: number;
  share_ppm: number;
  kept_ppm: number;
  lent_ppm: number;
  hold: string;
  requests_per_s?: number;
  p50_ns?: number;
  p99_ns?: number;
  within_ppm?: number | null;
  is_reported?: boolean;
}

export interface Gpu {
  index: number;
  name: string;
  called: string[];
  memory_bytes: number;
  held_bytes: number;
  foreign_bytes: number;
  busy_ppm: number;
  online_ppm: number;
  offline_ppm: number;
  launches_per_s: number;
  health: string;
  why: string;
  setpoint_ppm: number | null;
  rules: string;
  tenants: number;
}

export interface Delay {
  gpu: number;
  delayed: string;
  by: string;
  ppm: number;
}

export interface NodeData {
  problem?: string;
  at_ms: number;
  node: { version: string; pid: number; slots: number; turns: number; restricted: boolean; turn_p99_ns: number };
  gpus: Gpu[];
  tenants: Tenant[];
  delays: Delay[];
  departed: { name: string; ending: string; ago_s: number }[];
}

export interface LogEvent {
  at_ms: number;
  ts: string;
  level: "info" | "warning" | "error";
  event: string;
  tenant: string;
  gpu: number | null;
  turn: number;
  why: string;
  text: string;
  online_ppm?: number;
  was_ppm?: number;
}

export interface EventData {
  problem?: string;
  events: LogEvent[];
  decisions: LogEvent[];
}

export interface DelayData {
  problem?: string;
  measured: number[];
  delays: Delay[];
}

export interface Track {
  tenant: string;
  kind: "online" | "offline";
  names: string[];
  running: [number, number, number][];
  waits: [number, number, string][];
}

export interface TimelineData {
  problem?: string;
  gpu: number;
  exact: boolean;
  start_ns: number;
  end_ns: number;
  end_ms: number;
  busy_ppm: number;
  tracks: Track[];
  idle: [number, number][];
}

export interface ClusterGpu {
  node: string;
  index: number;
  type: string;
  condition: string;
  memory_bytes: number;
  free_bytes: number;
  offer_ppm: number;
  online: string[];
  load_ppm: number;
  offline: string[];
  age_s: number;
}

export interface ClusterData {
  problem?: string;
  gpus: ClusterGpu[];
  jobs: {
    namespace: string;
    name: string;
    counts: Record<string, number>;
    completions: number;
    succeeded: number;
    failed: number;
    age_s: number;
    reason: string;
  }[];
  pods: { namespace: string; name: string; kind: string; phase: string; node: string; age_s: number; reason: string }[];
  pairs: {
    node: string;
    gpu: number;
    offline: string;
    online: string[];
    predicted: { slowdown: number | null; learned: boolean } | null;
    measured: number | null;
  }[];
}

export interface ServedModel {
  model: string;
  waiting?: number;
  active_runs?: number;
  units_in_use?: number;
  planned_batch?: number;
  planned_rate?: number;
  attainment?: number;
  latency: Record<string, number>;
  batches: Record<string, number>;
  refused: Record<string, number>;
  totals: Record<string, number>;
  per_s: Record<string, number>;
}

export interface ServerData {
  problem?: string;
  address: string;
  models: ServedModel[];
  server: Record<string, number>;
}

export interface About {
  version: string;
  may_read: boolean;
  may_act: boolean;
  can_operate: boolean;
  period_ms: number;
}

export interface Topics {
  node: NodeData;
  events: EventData;
  delays: DelayData;
  timeline: TimelineData;
  cluster: ClusterData;
  server: ServerData;
}

/** One sample of a tenant, for the charts of this page. */
export interface Sample {
  at_s: number;
  p50_ms: number | null;
  p99_ms: number | null;
  slo_ms: number | null;
  used: number;
  share: number | null;
  lent: number;
  waited: number;
  memory_gib: number;
  quota_gib: number | null;
  launches: number;
}

const SAMPLES_LIMIT = 600;
const history = new Map<string, Sample[]>();

export function samplesOf(tenant: Tenant): Sample[] {
  return history.get(`${tenant.gpu}/${tenant.slot}/${tenant.generation}`) ?? [];
}

function remember(node: NodeData): void {
  const present = new Set<string>();
  for (const tenant of node.tenants) {
    const key = `${tenant.gpu}/${tenant.slot}/${tenant.generation}`;
    present.add(key);
    const samples = history.get(key) ?? [];
    history.set(key, samples);
    samples.push({
      at_s: node.at_ms / 1000,
      p50_ms: tenant.p50_ns ? tenant.p50_ns / 1e6 : null,
      p99_ms: tenant.p99_ns ? tenant.p99_ns / 1e6 : null,
      slo_ms: tenant.slo_ns ? tenant.slo_ns / 1e6 : null,
      used: tenant.device_ppm / 1e4,
      share: tenant.share_ppm ? tenant.share_ppm / 1e4 : null,
      lent: tenant.lent_ppm / 1e4,
      waited: tenant.waited_ppm / 1e4,
      memory_gib: tenant.held_bytes / 2 ** 30,
      quota_gib: tenant.quota_bytes ? tenant.quota_bytes / 2 ** 30 : null,
      launches: tenant.launches_per_s,
    });
    if (samples.length > SAMPLES_LIMIT) samples.shift();
  }
  for (const key of history.keys()) if (!present.has(key)) history.delete(key);
}

export type Received = { [Topic in keyof Topics]?: Topics[Topic] };
export type LinkState = "connecting" | "live" | "lost";

/** Follow topics while the component is shown; the node is always followed, for the charts. */
export function useStream(topics: (keyof Topics)[], parameters: string): [Received, LinkState] {
  const [received, setReceived] = useState<Received>({});
  const [state, setState] = useState<LinkState>("connecting");
  const [isVisible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const changed = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  const query = `topics=${topics.join(",")}${parameters}`;
  useEffect(() => {
    if (!isVisible) return; // a hidden page costs the node nothing
    const source = new EventSource(`/api/stream?${query}`);
    source.onopen = () => setState("live");
    source.onerror = () => setState("lost");
    for (const topic of topics) {
      source.addEventListener(topic, (message) => {
        const data = JSON.parse((message as MessageEvent<string>).data);
        if (topic === "node" && !data.problem) remember(data);
        setState("live");
        setReceived((before) => ({ ...before, [topic]: data }));
      });
    }
    return () => source.close();
  }, [query, isVisible]);
  return [received, state];
}

export async function send(path: string, body: unknown): Promise<string> {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Cotenant-Action": "1" },
    body: JSON.stringify(body),
  });
  if (answer.ok) return "";
  try {
    return (await answer.json()).problem ?? `the server answered ${answer.status}`;
  } catch {
    return `the server answered ${answer.status}`;
  }
}

export async function fetchJson<T>(path: string): Promise<T> {
  const answer = await fetch(path);
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.problem ?? `the server answered ${answer.status}`);
  return data;
}
