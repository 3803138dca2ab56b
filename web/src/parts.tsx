// Parts that several pages use.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export function Bar(props: {
  label: string;
  value: number;
  max: number;
  text: string;
  title: string;
  tone?: "good" | "bad" | "plain" | "warn" | "offline";
  second?: number;
  secondTone?: string;
}) {
  const part = (value: number) => `${Math.max(0, Math.min(100, props.max ? (100 * value) / props.max : 0))}%`;
  return (
    <div class={`bar ${props.tone ?? "plain"}`} title={props.title}>
      <div
        class="track"
        role="meter"
        aria-label={props.label}
        aria-valuemin={0}
        aria-valuemax={Math.max(props.max, props.value, 1)}
        aria-valuenow={props.value}
        aria-valuetext={props.text}
      >
        <div class="fill" style={{ width: part(props.value) }} />
        {props.second ? <div class={`fill second ${props.secondTone ?? ""}`} style={{ left: part(props.value), width: part(props.second) }} /> : null}
      </div>
      <span class="value">{props.text}</span>
    </div>
  );
}

export function Badge(props: { tone: string; children: ComponentChildren; title?: string }) {
  return (
    <span class={`badge ${props.tone}`} title={props.title}>
      {props.children}
    </span>
  );
}

/** A table in a region that scrolls by itself, also by keyboard. */
export function Table(props: { label: string; head: ComponentChildren[]; children: ComponentChildren }) {
  return (
    <div class="scroll" role="region" aria-label={props.label} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {props.head.map((cell, index) => (
              <th scope="col" key={index}>
                {cell}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>{props.children}</tbody>
      </table>
    </div>
  );
}

export function Notice(props: { children: ComponentChildren; tone?: string }) {
  return (
    <p class={`notice ${props.tone ?? ""}`} role={props.tone === "bad" ? "alert" : "status"}>
      {props.children}
    </p>
  );
}

export interface Line {
  label: string;
  color: string;
  values: (number | null)[];
  dash?: number[];
  fill?: boolean;
  stepped?: boolean;
}

function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888";
}

/** A chart over time; the values under the pointer are in its legend. */
export function Chart(props: { title: string; unit: string; at: number[]; lines: Line[]; height?: number; theme: string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = props.lines.map((line) => line.label + line.color + (line.dash ? "-" : "")).join("|");
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const grid = { stroke: color("grid"), width: 1 };
    const text = color("muted");
    const value = (_: uPlot, raw: number | null) =>
      raw === null || raw === undefined ? "-" : `${raw >= 100 ? raw.toFixed(0) : raw.toFixed(2)} ${props.unit}`;
    const options: uPlot.Options = {
      width: Math.max(200, element.clientWidth),
      height: props.height ?? 180,
      cursor: { y: false, drag: { x: true, y: false } },
      scales: { x: { time: true }, y: { range: (_u, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        {
          stroke: text,
          grid,
          ticks: grid,
          space: 90,
          values: (_u, all) => all.map((one) => new Date(one * 1000).toLocaleTimeString("en-GB")),
        },
        { stroke: text, grid, ticks: grid, size: 56, values: (_u, all) => all.map((one) => `${one}`) },
      ],
      series: [
        { value: (_u, raw) => (raw ? new Date(raw * 1000).toLocaleTimeString("en-GB") : "-") },
        ...props.lines.map((line) => ({
          label: line.label,
          stroke: color(line.color),
          width: line.dash ? 1.5 : 2,
          dash: line.dash,
          fill: line.fill ? `${color(line.color)}22` : undefined,
          points: { show: false },
          value,
          paths: line.stepped ? uPlot.paths.stepped?.({ align: 1 }) : undefined,
        })),
      ],
    };
    plot.current = new uPlot(options, [[], ...props.lines.map(() => [])], element);
    const observer = new ResizeObserver(() => {
      plot.current?.setSize({ width: Math.max(200, element.clientWidth), height: props.height ?? 180 });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, props.theme, props.unit]);
  useEffect(() => {
    plot.current?.setData([props.at, ...props.lines.map((line) => line.values)]);
    if ((plot.current?.cursor.left ?? -1) < 0) plot.current?.setLegend({ idx: props.at.length - 1 }, false);
  });
  const last = props.lines
    .map((line) => [line.label, line.values.findLast((one) => one !== null)] as const)
    .filter(([, one]) => one !== undefined)
    .map(([label, one]) => `${label} ${(one as number).toFixed(1)} ${props.unit}`)
    .join(", ");
  return (
    <figure class="chart">
      <figcaption>
        {props.title} <span class="muted">({props.unit})</span>
      </figcaption>
      <div ref={box} role="img" aria-label={`${props.title}: ${last || "no values yet"}`} />
    </figure>
  );
}

/** A modal dialog; Escape closes it. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    element.current?.showModal();
  }, []);
  return (
    <dialog ref={element} aria-label={props.title} onClose={props.onClose}>
      <h2>{props.title}</h2>
      {props.children}
    </dialog>
  );
}
