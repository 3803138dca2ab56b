// The events of the node, newest first.
import { useState } from "preact/hooks";
import type { EventData } from "../data";
import { clock } from "../format";
import { Badge, Notice, Table } from "../parts";

export function EventsPage({ events }: { events: EventData | undefined }) {
  const [words, setWords] = useState("");
  const [level, setLevel] = useState("all");
  if (!events) return <Notice>Reading the journal…</Notice>;
  if (events.problem) return <Notice tone="bad">{events.problem}</Notice>;
  const shown = [...events.events, ...events.decisions]
    .sort((a, b) => b.turn - a.turn)
    .filter((one) => level === "all" || one.level !== "info")
    .filter((one) => `${one.text} ${one.event} ${one.tenant}`.toLowerCase().includes(words.toLowerCase()))
    .slice(0, 300);
  return (
    <section class="card" aria-label="events">
      <div class="choices">
        <label class="choice">
          Search <input type="search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        </label>
        <label class="choice">
          Level{" "}
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            <option value="all">all</option>
            <option value="warnings">warnings and errors</option>
          </select>
        </label>
      </div>
      <Table label="events of the node" head={["Time", "Event", "Tenant", "GPU", "What happened"]}>
        {shown.map((one, index) => (
          <tr key={`${one.turn}/${index}`}>
            <td class="number" title={one.ts}>
              {clock(one.at_ms)}
            </td>
            <td>
              <Badge tone={one.level === "error" ? "bad" : one.level === "warning" ? "warn" : ""}>{one.event}</Badge>
            </td>
            <td>{one.tenant ? <a href={`#/tenant/${encodeURIComponent(one.tenant)}`}>{one.tenant}</a> : "-"}</td>
            <td class="number">{one.gpu ?? "-"}</td>
            <td class="text">{one.text}</td>
          </tr>
        ))}
      </Table>
      {shown.length ? null : <p class="muted">No event matches.</p>}
    </section>
  );
}
