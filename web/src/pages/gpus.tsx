// The GPUs of the node and their tenants.
import type { Gpu, NodeData, Tenant } from "../data";
import { age, duration, percent, rate, size } from "../format";
import { Badge, Bar, Notice, Table } from "../parts";

export function stateTone(tenant: Tenant): string {
  if (!tenant.connected || tenant.phase !== "running") return "bad";
  return { paused: "warn", waiting: "info", running: "good", quiet: "" }[tenant.state] ?? "";
}

export function stateOf(tenant: Tenant): string {
  if (tenant.phase !== "running") return tenant.phase;
  return tenant.connected ? tenant.state : "disconnected";
}

export function LatencyBar({ tenant }: { tenant: Tenant }) {
  if (tenant.kind === "offline") return <span class="muted">no objective</span>;
  const p99 = tenant.p99_ns ?? 0;
  if (!tenant.slo_ns) return <span title="p99 over the last seconds">{p99 ? `p99 ${duration(p99)}` : "no requests"}</span>;
  const isMet = p99 <= tenant.slo_ns;
  const within = tenant.within_ppm === null || tenant.within_ppm === undefined ? "" : `, ${percent(tenant.within_ppm)} within`;
  return (
    <Bar
      label={`p99 latency of ${tenant.name} against its objective`}
      value={p99}
      max={tenant.slo_ns}
      tone={p99 ? (isMet ? "good" : "bad") : "plain"}
      text={`${duration(p99)} of ${duration(tenant.slo_ns)}`}
      title={`p50 ${duration(tenant.p50_ns)}, p99 ${duration(p99)}, objective ${duration(tenant.slo_ns)}${within}, ${rate(tenant.requests_per_s)} requests`}
    />
  );
}

export function ShareBar({ tenant }: { tenant: Tenant }) {
  const text = tenant.share_ppm
    ? `${percent(tenant.device_ppm)} of ${percent(tenant.share_ppm)}${tenant.lent_ppm ? `, ${percent(tenant.lent_ppm)} lent` : ""}`
    : percent(tenant.device_ppm);
  return (
    <Bar
      label={`device time of ${tenant.name}`}
      value={tenant.device_ppm}
      second={tenant.lent_ppm}
      secondTone="lent"
      tone={tenant.kind === "offline" ? "offline" : "plain"}
      max={1_000_000}
      text={text}
      title={`uses ${percent(tenant.device_ppm)} of the device; share ${percent(tenant.share_ppm)}, kept ${percent(tenant.kept_ppm)}, lent to others ${percent(tenant.lent_ppm)}; filled gaps ${percent(tenant.filled_ppm)}`}
    />
  );
}

export function MemoryBar({ tenant }: { tenant: Tenant }) {
  const quota = tenant.quota_bytes;
  return (
    <Bar
      label={`memory of ${tenant.name}`}
      value={tenant.held_bytes}
      max={quota || Math.max(tenant.held_bytes, 1)}
      tone={quota && tenant.held_bytes > 0.95 * quota ? "warn" : "plain"}
      text={quota ? `${size(tenant.held_bytes)} of ${size(quota)}` : size(tenant.held_bytes)}
      title={`holds ${size(tenant.held_bytes)}, quota ${quota ? size(quota) : "none"}, device reports ${size(tenant.measured_bytes)}, refused allocations ${tenant.denied ?? 0}`}
    />
  );
}

function TenantRow({ tenant }: { tenant: Tenant }) {
  return (
    <tr>
      <th scope="row">
        <a href={`#/tenant/${encodeURIComponent(tenant.name)}`} title={tenant.command || tenant.name}>
          {tenant.name}
        </a>
      </th>
      <td class="kind">
        <Badge tone={tenant.kind}>{tenant.kind}</Badge> <span class="muted">{tenant.priority}</span>
      </td>
      <td>
        <Badge tone={stateTone(tenant)} title={tenant.hold || tenant.why}>
          {stateOf(tenant)}
        </Badge>
      </td>
      <td class="wide">
        <LatencyBar tenant={tenant} />
      </td>
      <td class="wide">
        <ShareBar tenant={tenant} />
      </td>
      <td class="wide">
        <MemoryBar tenant={tenant} />
      </td>
      <td class="number" title={`${tenant.launches_per_s} kernel launches per second`}>
        {rate(tenant.launches_per_s)}
      </td>
      <td class="number" title={`p99 of one wait ${duration(tenant.waited_p99_ns)}; ${rate(tenant.waits_per_s)} waits`}>
        {percent(Math.min(1_000_000, tenant.waited_ppm))}
      </td>
      <td class="number">{age(tenant.age_s)}</td>
    </tr>
  );
}

const HEAD = ["Tenant", "Kind", "State", "p99 latency", "Device time and share", "Memory", "Kernels", "Waiting", "Age"];

function GpuCard({ gpu, tenants }: { gpu: Gpu; tenants: Tenant[] }) {
  const isHealthy = gpu.health === "healthy" || gpu.health === "init" || gpu.health === "";
  const title = `GPU ${gpu.index}${gpu.name ? `: ${gpu.name}` : ""}`;
  return (
    <section class="card" aria-label={title}>
      <header>
        <h2>{title}</h2>
        {gpu.health ? (
          <Badge tone={isHealthy ? "good" : "bad"} title={gpu.why}>
            {gpu.health}
            {gpu.why && !isHealthy ? `: ${gpu.why}` : ""}
          </Badge>
        ) : null}
        <a href={`#/timeline/${gpu.index}`}>Timeline</a>
      </header>
      <dl class="facts">
        <div>
          <dt>Device time</dt>
          <dd>
            <Bar
              label={`device time of GPU ${gpu.index}`}
              value={gpu.online_ppm}
              second={gpu.offline_ppm}
              max={1_000_000}
              text={`${percent(gpu.online_ppm)} online, ${percent(gpu.offline_ppm)} offline`}
              title={`online ${percent(gpu.online_ppm)}, offline ${percent(gpu.offline_ppm)}, ${rate(gpu.launches_per_s)} kernels`}
            />
          </dd>
        </div>
        <div>
          <dt>Memory</dt>
          <dd>
            <Bar
              label={`memory of GPU ${gpu.index}`}
              value={gpu.held_bytes}
              second={gpu.foreign_bytes}
              max={gpu.memory_bytes}
              text={`${size(gpu.held_bytes)} of ${size(gpu.memory_bytes)}`}
              title={`tenants hold ${size(gpu.held_bytes)}, other processes ${size(gpu.foreign_bytes)}, device ${size(gpu.memory_bytes)}`}
            />
          </dd>
        </div>
        <div>
          <dt>Online share</dt>
          <dd title={gpu.rules}>{gpu.setpoint_ppm === null ? "not adjusted" : percent(gpu.setpoint_ppm)}</dd>
        </div>
        <div>
          <dt>Kernels</dt>
          <dd>{rate(gpu.launches_per_s)}</dd>
        </div>
      </dl>
      {tenants.length ? (
        <Table label={`tenants of GPU ${gpu.index}`} head={HEAD}>
          {tenants.map((tenant) => (
            <TenantRow key={`${tenant.slot}/${tenant.generation}`} tenant={tenant} />
          ))}
        </Table>
      ) : (
        <p class="muted">No tenants. Start one with: cotenant run -- COMMAND</p>
      )}
      <p class="rules muted">{gpu.rules}</p>
    </section>
  );
}

export function GpusPage({ node }: { node: NodeData | undefined }) {
  if (!node) return <Notice>Reading the node…</Notice>;
  if (node.problem) return <Notice tone="bad">{node.problem}</Notice>;
  const homeless = node.tenants.filter((tenant) => tenant.gpu < 0);
  return (
    <>
      {node.node.restricted ? <Notice>Only your own tenants are shown, because you do not operate this node.</Notice> : null}
      {node.gpus.map((gpu) => (
        <GpuCard key={gpu.index} gpu={gpu} tenants={node.tenants.filter((tenant) => tenant.gpu === gpu.index)} />
      ))}
      {node.gpus.length ? null : <Notice>The node has no GPU. Create one with: cotenant softgpu create</Notice>}
      {homeless.length ? (
        <section class="card" aria-label="tenants without a GPU">
          <h2>Without a GPU</h2>
          <Table label="tenants without a GPU" head={HEAD}>
            {homeless.map((tenant) => (
              <TenantRow key={tenant.name} tenant={tenant} />
            ))}
          </Table>
        </section>
      ) : null}
      {node.departed.length ? (
        <section class="card" aria-label="tenants that left">
          <h2>Left</h2>
          <Table label="tenants that left" head={["Tenant", "How it ended", "Ago"]}>
            {node.departed.toReversed().map((one, index) => (
              <tr key={index}>
                <th scope="row">
                  <a href={`#/tenant/${encodeURIComponent(one.name)}`}>{one.name}</a>
                </th>
                <td>{one.ending}</td>
                <td class="number">{age(one.ago_s)}</td>
              </tr>
            ))}
          </Table>
        </section>
      ) : null}
    </>
  );
}
