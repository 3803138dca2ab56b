// Who delayed whom: a matrix of tenants.
import { useState } from "preact/hooks";
import type { Delay, DelayData, NodeData } from "../data";
import { percent } from "../format";
import { Notice } from "../parts";

function Matrices({ title, about, parts }: { title: string; about: string; parts: [string, Delay[]][] }) {
  return (
    <section class="card" aria-label={title}>
      <h2>{title}</h2>
      <p class="muted">{about}</p>
      {parts.map(([gpu, delays]) => (
        <Matrix key={gpu} title={`${title}, ${gpu}`} gpu={gpu} delays={delays} />
      ))}
    </section>
  );
}

function Matrix({ title, gpu, delays }: { title: string; gpu: string; delays: Delay[] }) {
  const names = [...new Set(delays.flatMap((delay) => [delay.delayed, delay.by]))].sort();
  const sums = new Map<string, number>();
  for (const delay of delays) {
    const key = `${delay.delayed}\n${delay.by}`;
    sums.set(key, (sums.get(key) ?? 0) + delay.ppm);
  }
  const largest = Math.max(...sums.values(), 1);
  const sumOf = (match: (delay: Delay) => boolean) =>
    delays.filter(match).reduce((sum, delay) => sum + delay.ppm, 0);
  return (
    <>
      {gpu ? <h3>{gpu}</h3> : null}
      {names.length ? (
        <div class="scroll" role="region" aria-label={`${title}, table`} tabIndex={0}>
          <table class="matrix">
            <thead>
              <tr>
                <th scope="col">Delayed \ by</th>
                {names.map((name) => (
                  <th scope="col" key={name}>
                    {name}
                  </th>
                ))}
                <th scope="col">suffered</th>
              </tr>
            </thead>
            <tbody>
              {names.map((delayed) => (
                <tr key={delayed}>
                  <th scope="row">{delayed}</th>
                  {names.map((by) => {
                    const ppm = sums.get(`${delayed}\n${by}`) ?? 0;
                    const level = ppm ? Math.max(1, Math.ceil((5 * ppm) / largest)) : 0;
                    return (
                      <td
                        key={by}
                        class={`heat heat${level}`}
                        title={`${delayed} was delayed by ${by} for ${percent(ppm)} of the time`}
                      >
                        {ppm ? percent(ppm) : delayed === by ? "" : "·"}
                      </td>
                    );
                  })}
                  <td class="number total">{percent(sumOf((delay) => delay.delayed === delayed))}</td>
                </tr>
              ))}
              <tr>
                <th scope="row">caused</th>
                {names.map((by) => (
                  <td key={by} class="number total">
                    {percent(sumOf((delay) => delay.by === by))}
                  </td>
                ))}
                <td />
              </tr>
            </tbody>
          </table>
        </div>
      ) : (
        <p class="muted">No tenant was delayed in the last second.</p>
      )}
    </>
  );
}

export function DelaysPage({ node, delays }: { node: NodeData | undefined; delays: DelayData | undefined }) {
  const [gpu, setGpu] = useState(-1);
  if (!node) return <Notice>Reading the node…</Notice>;
  if (node.problem) return <Notice tone="bad">{node.problem}</Notice>;
  // Tenants of different GPUs never delay each other, so each GPU has a matrix of its own.
  const chosen = (all: Delay[]): [string, Delay[]][] => {
    const gpus = gpu < 0 ? [...new Set(all.map((delay) => delay.gpu))].sort((a, b) => a - b) : [gpu];
    const parts = gpus.map((one): [string, Delay[]] => [`GPU ${one}`, all.filter((delay) => delay.gpu === one)]);
    return parts.length ? parts : [["", []]];
  };
  return (
    <>
      <label class="choice">
        GPU{" "}
        <select value={gpu} onChange={(event) => setGpu(Number(event.currentTarget.value))}>
          <option value={-1}>all</option>
          {node.gpus.map((one) => (
            <option key={one.index} value={one.index}>
              {one.index}: {one.name}
            </option>
          ))}
        </select>
      </label>
      <Matrices
        title="Waiting at the gate"
        about="Part of the last second. The gate measures how long a tenant waited and how much it may have delayed others; both are divided among the tenants concerned by their device time."
        parts={chosen(node.delays)}
      />
      {delays?.measured.length ? (
        <Matrices
          title="Waiting on the device"
          about="Part of the last second, summed over kernels, as software GPUs measure it: time by which kernels ended later than without the other tenant."
          parts={chosen(delays.delays)}
        />
      ) : delays ? (
        <Notice>Only software GPUs measure delays between kernels on the device.</Notice>
      ) : null}
    </>
  );
}
