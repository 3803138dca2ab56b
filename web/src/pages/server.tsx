// An inference server: models, queues, batches and goodput.
import type { ServedModel, ServerData } from "../data";
import { digits, duration, percent, rate } from "../format";
import { Badge, Bar, Notice, Table } from "../parts";

function Batches({ model }: { model: ServedModel }) {
  const bounds = Object.entries(model.batches)
    .filter(([bound]) => bound !== "+Inf")
    .map(([bound, count]) => [Number(bound), count] as const)
    .sort((a, b) => a[0] - b[0]);
  const counts = bounds.map(([bound, count], index) => [bound, count - (index ? bounds[index - 1]![1] : 0)] as const);
  const largest = Math.max(1, ...counts.map(([, count]) => count));
  const used = counts.filter(([, count]) => count > 0);
  if (!used.length) return <span class="muted">no runs</span>;
  return (
    <span class="bins">
      {used.map(([bound, count]) => (
        <span class="bin" key={bound} title={`${count} runs of at most ${bound} rows`}>
          <span class="column" style={{ height: `${Math.max(2, (28 * count) / largest)}px` }} />
          <small>{bound}</small>
        </span>
      ))}
    </span>
  );
}

export function ServerPage({ server }: { server: ServerData | undefined }) {
  if (!server) return <Notice>Asking the server…</Notice>;
  if (server.problem) {
    return (
      <Notice tone="bad">
        {server.problem}. Start one with: cotenant serve run MODELS, or choose another with: cotenant web --server HOST:PORT
      </Notice>
    );
  }
  const facts = server.server;
  return (
    <section class="card" aria-label="inference server">
      <header>
        <h2>{server.address}</h2>
        <Badge tone={facts.ready ? "good" : "warn"}>{facts.ready ? "ready" : "not ready"}</Badge>
      </header>
      <dl class="facts">
        <div>
          <dt>Units</dt>
          <dd>{facts.units ?? "-"}</dd>
        </div>
        <div>
          <dt>Loop lag</dt>
          <dd>{duration(Math.round((facts.loop_lag_s ?? 0) * 1e9))}</dd>
        </div>
        <div>
          <dt>Workers</dt>
          <dd>{facts.workers ?? "none"}</dd>
        </div>
      </dl>
      <Table
        label="models"
        head={["Model", "Goodput", "Answered", "Within objective", "p50", "p99", "Queue", "Runs now", "Rows per run", "Batches", "Refused"]}
      >
        {server.models.map((model) => {
          const rows = model.totals.runs ? (model.totals.rows ?? 0) / model.totals.runs : 0;
          const refused = Object.values(model.refused).reduce((sum, count) => sum + count, 0);
          return (
            <tr key={model.model}>
              <th scope="row">{model.model}</th>
              <td class="number" title="requests per second that were answered within their objective">
                {rate(model.per_s.in_time)}
              </td>
              <td class="number" title={`${model.totals.answered ?? 0} since the start`}>
                {rate(model.per_s.answered)}
              </td>
              <td class="wide">
                {model.attainment === undefined ? (
                  <span class="muted">no objective</span>
                ) : (
                  <Bar
                    label={`requests of ${model.model} within their objective`}
                    value={model.attainment}
                    max={1}
                    tone={model.attainment >= 0.99 ? "good" : "warn"}
                    text={percent(model.attainment * 1e6)}
                    title={`${model.totals.in_time ?? 0} of ${model.totals.offered ?? 0} offered requests`}
                  />
                )}
              </td>
              <td class="number">{duration(Math.round((model.latency["0.5"] ?? 0) * 1e9))}</td>
              <td class="number">{duration(Math.round((model.latency["0.99"] ?? 0) * 1e9))}</td>
              <td class="number" title="requests in the queue now">
                {model.waiting ?? 0}
              </td>
              <td class="number">{model.active_runs ?? 0}</td>
              <td class="number" title={model.planned_batch ? `planned: ${model.planned_batch}` : "no plan"}>
                {rows ? digits(rows) : "-"}
              </td>
              <td>
                <Batches model={model} />
              </td>
              <td class="number" title={Object.entries(model.refused).map(([why, count]) => `${why}: ${count}`).join(", ") || "none"}>
                {refused}
              </td>
            </tr>
          );
        })}
      </Table>
      {server.models.length ? null : <p class="muted">The server has no models.</p>}
    </section>
  );
}
