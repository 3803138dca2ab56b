// The decisions of the controller over time, with reasons.
import type { EventData, LogEvent, NodeData } from "../data";
import { clock, percent } from "../format";
import { Badge, Chart, Notice, Table } from "../parts";

const COLORS = ["online", "offline", "second", "warn", "bad", "good"];

function shareLines(decisions: LogEvent[], now_s: number) {
  const gpus = [...new Set(decisions.map((one) => one.gpu ?? 0))].sort((a, b) => a - b).slice(0, COLORS.length);
  const at = [...new Set([...decisions.map((one) => one.at_ms / 1000), now_s])].sort((a, b) => a - b);
  const lines = gpus.map((gpu, index) => {
    let last: number | null = null;
    const own = new Map(decisions.filter((one) => one.gpu === gpu).map((one) => [one.at_ms / 1000, one.online_ppm ?? 0]));
    const values = at.map((instant) => {
      const changed = own.get(instant);
      if (changed !== undefined) last = changed / 1e4;
      return last;
    });
    return { label: `GPU ${gpu}`, color: COLORS[index]!, values, stepped: true };
  });
  return { at, lines };
}

export function DecisionsPage(props: { node: NodeData | undefined; events: EventData | undefined; theme: string }) {
  const { events, node, theme } = props;
  if (!events) return <Notice>Reading the journal…</Notice>;
  if (events.problem) return <Notice tone="bad">{events.problem}</Notice>;
  const { at, lines } = shareLines(events.decisions, (node?.at_ms ?? Date.now()) / 1000);
  return (
    <>
      {lines.length ? (
        <Chart title="Online share" unit="%" at={at} theme={theme} lines={lines} height={220} />
      ) : (
        <Notice>The controller has not changed an online share: it does so for online tenants with an objective.</Notice>
      )}
      <section class="card" aria-label="decisions">
        <h2>Decisions</h2>
        <Table label="decisions of the controller" head={["Time", "GPU", "Online share", "Cause", "Reason"]}>
          {events.decisions
            .toReversed()
            .slice(0, 200)
            .map((one) => (
              <tr key={`${one.turn}/${one.gpu}`}>
                <td class="number" title={one.ts}>
                  {clock(one.at_ms)}
                </td>
                <td class="number">{one.gpu}</td>
                <td class="number" title={`it was ${percent(one.was_ppm)}`}>
                  {percent(one.was_ppm)} → {percent(one.online_ppm)}
                </td>
                <td>
                  <Badge tone={one.level === "info" ? "info" : "warn"}>{one.why}</Badge>
                </td>
                <td class="text">{one.text}</td>
              </tr>
            ))}
        </Table>
      </section>
    </>
  );
}
