// A Kubernetes cluster: GPUs as a heat map, waiting Jobs with reasons, and pairs that share a GPU.
import type { ClusterData, ClusterGpu } from "../data";
import { age, count, percent, size } from "../format";
import { Badge, Notice, Table } from "../parts";

function usedPpm(gpu: ClusterGpu): number {
  return Math.min(1_000_000, gpu.load_ppm + (gpu.offline.length ? gpu.offer_ppm : 0));
}

function Heat({ gpus }: { gpus: ClusterGpu[] }) {
  const nodes = [...new Set(gpus.map((gpu) => gpu.node))];
  return (
    <section class="card" aria-label="GPUs of the cluster">
      <h2>
        {count(gpus.length, "GPU")} on {count(nodes.length, "node")}
      </h2>
      <ul class="nodes">
        {nodes.map((node) => (
          <li key={node}>
            <span class="node">{node}</span>
            {gpus
              .filter((gpu) => gpu.node === node)
              .map((gpu) => {
                const isHealthy = gpu.condition === "healthy";
                const level = isHealthy ? Math.min(5, Math.ceil(usedPpm(gpu) / 200_000)) : 0;
                const title = `${node}, GPU ${gpu.index} (${gpu.type}): ${gpu.condition}; online load ${percent(gpu.load_ppm)}, offered ${percent(gpu.offer_ppm)}, ${size(gpu.free_bytes)} of ${size(gpu.memory_bytes)} free; online: ${gpu.online.join(", ") || "none"}; offline: ${gpu.offline.join(", ") || "none"}; reported ${age(gpu.age_s)} ago`;
                return (
                  <span
                    key={gpu.index}
                    class={`cell heat heat${level} ${isHealthy ? "" : "broken"}`}
                    title={title}
                    role="img"
                    aria-label={title}
                    tabIndex={0}
                  >
                    {gpu.index}
                    <small>
                      {gpu.online.length}/{gpu.offline.length}
                    </small>
                  </span>
                );
              })}
          </li>
        ))}
      </ul>
      <p class="muted">Darker: more of the GPU is used. Small numbers: online and offline tenants. Values on hover.</p>
    </section>
  );
}

export function ClusterPage({ cluster }: { cluster: ClusterData | undefined }) {
  if (!cluster) return <Notice>Reading the cluster…</Notice>;
  if (cluster.problem) {
    return <Notice tone="bad">{cluster.problem}. Choose a cluster with: cotenant web --kubeconfig FILE</Notice>;
  }
  const waiting = cluster.pods.filter((pod) => pod.phase === "waiting" || pod.phase === "starting");
  return (
    <>
      <Heat gpus={cluster.gpus} />
      <section class="card" aria-label="waiting pods">
        <h2>Waiting</h2>
        {waiting.length ? (
          <Table label="waiting pods" head={["Pod", "Kind", "State", "Age", "Reason"]}>
            {waiting.map((pod) => (
              <tr key={`${pod.namespace}/${pod.name}`}>
                <th scope="row">
                  {pod.namespace}/{pod.name}
                </th>
                <td>{pod.kind}</td>
                <td>
                  <Badge tone="warn">{pod.phase}</Badge>
                </td>
                <td class="number">{age(pod.age_s)}</td>
                <td class="text">{pod.reason || "no reason yet"}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <p class="muted">No pod waits.</p>
        )}
      </section>
      <section class="card" aria-label="pairs">
        <h2>Pairs</h2>
        <p class="muted">Slowdown: time together over time alone. Predictions assume the worst until the controller has learned about a profile.</p>
        {cluster.pairs.length ? (
          <Table label="pairs that share a GPU" head={["Offline pod", "Online tenants", "Where", "Predicted", "Measured"]}>
            {cluster.pairs.map((pair) => (
              <tr key={`${pair.node}/${pair.gpu}/${pair.offline}`}>
                <th scope="row">{pair.offline}</th>
                <td>{pair.online.join(", ")}</td>
                <td>
                  {pair.node}, GPU {pair.gpu}
                </td>
                <td class="number" title={pair.predicted?.learned ? "learned from measurements" : "worst case"}>
                  {pair.predicted?.slowdown ? `${pair.predicted.slowdown.toFixed(2)} ×${pair.predicted.learned ? "" : " (worst case)"}` : "-"}
                </td>
                <td class="number">{pair.measured ? `${pair.measured.toFixed(2)} ×` : "not yet"}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <p class="muted">No offline pod shares a GPU with an online tenant.</p>
        )}
      </section>
      <section class="card" aria-label="Jobs">
        <h2>Jobs</h2>
        {cluster.jobs.length ? (
          <Table label="Jobs" head={["Job", "Done", "Failed", "Pods", "Age", "Reason"]}>
            {cluster.jobs.map((job) => (
              <tr key={`${job.namespace}/${job.name}`}>
                <th scope="row">
                  {job.namespace}/{job.name}
                </th>
                <td class="number">
                  {job.succeeded}/{job.completions}
                </td>
                <td class="number">{job.failed}</td>
                <td>
                  {Object.entries(job.counts)
                    .map(([phase, pods]) => `${pods} ${phase}`)
                    .join(", ")}
                </td>
                <td class="number">{age(job.age_s)}</td>
                <td class="text">{job.reason || "-"}</td>
              </tr>
            ))}
          </Table>
        ) : (
          <p class="muted">The cluster has no offline Job.</p>
        )}
      </section>
    </>
  );
}
