// The last few hundred milliseconds of one GPU, with zoom.
import { useEffect, useRef, useState } from "preact/hooks";
import type { NodeData, TimelineData } from "../data";
import { digits, percent } from "../format";
import { Notice } from "../parts";

const ROW = 46;
const TOP = 26;
const LEFT = 130;
const REASONS: Record<string, string> = {
  busy: "work of a higher priority runs",
  tight: "the kernel does not fit into the gap",
  due: "a tenant of higher priority may launch at any instant",
  bound: "the limit of submitted work is reached",
  other: "another waiting tenant goes first",
  paused: "the tenant is paused",
  changed: "a tenant of higher priority has just launched",
  debt: "the allowed delay of higher priorities is used up",
  limit: "the tenant has used its share for now",
  share: "a tenant of equal priority has not had its share yet",
};

interface View {
  from: number;
  to: number;
}

function css(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function draw(canvas: HTMLCanvasElement, data: TimelineData, view: View): void {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = TOP + ROW * (data.tracks.length + 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const left = Math.min(LEFT, width * 0.28);
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const x = (at: number) => left + ((at - view.from) / (view.to - view.from)) * (width - left);
  const text = css("text");
  const muted = css("muted");
  context.strokeStyle = css("grid");
  context.fillStyle = muted;
  const step = niceStep((view.to - view.from) / Math.max(2, (width - left) / 110));
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    context.beginPath();
    context.moveTo(x(at), TOP - 6);
    context.lineTo(x(at), height);
    context.stroke();
    context.fillText(label(at, step), x(at) + 3, 10);
  }
  const rows = [...data.tracks.map((track) => track.tenant), "idle"];
  rows.forEach((name, index) => {
    const y = TOP + index * ROW;
    context.fillStyle = text;
    context.fillText(shorten(context, name, left - 8), 4, y + ROW / 2 - 4);
    context.strokeStyle = css("grid");
    context.beginPath();
    context.moveTo(0, y + ROW - 0.5);
    context.lineTo(width, y + ROW - 0.5);
    context.stroke();
  });
  const block = (start: number, length: number, y: number, tall: number, color: string) => {
    if (start + length < view.from || start > view.to) return;
    const begin = Math.max(left, x(start));
    const end = Math.max(begin + 0.75, Math.min(width, x(start + length)));
    context.fillStyle = color;
    context.fillRect(begin, y, end - begin, tall);
  };
  data.tracks.forEach((track, index) => {
    const y = TOP + index * ROW + 5;
    for (const [start, length] of track.running) block(start, length, y, 20, css(track.kind));
    for (const [start, length] of track.waits) block(start, length, y + 23, 9, css("second"));
  });
  const y = TOP + data.tracks.length * ROW + 5;
  for (const [start, length] of data.idle) block(start, length, y, 20, css("grid"));
}

function shorten(context: CanvasRenderingContext2D, name: string, width: number): string {
  let shown = name;
  while (shown.length > 3 && context.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  return shown;
}

function niceStep(least: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least) ?? 10 * power;
}

function label(at_ns: number, step_ns: number): string {
  return step_ns >= 1e6 ? `${Math.round(at_ns / 1e6)} ms` : `${(at_ns / 1e6).toFixed(step_ns >= 1e4 ? 2 : 3)} ms`;
}

function spanText(ns: number): string {
  return ns >= 1e6 ? `${digits(ns / 1e6)} ms` : `${digits(ns / 1e3)} µs`;
}

function describe(data: TimelineData, row: number, at: number): string {
  const track = data.tracks[row];
  if (!track) {
    const gap = data.idle.find(([start, length]) => start <= at && at < start + length);
    return gap ? `idle for ${spanText(gap[1])}` : "busy";
  }
  const running = track.running.find(([start, length]) => start <= at && at < start + length);
  const wait = track.waits.find(([start, length]) => start <= at && at < start + length);
  const parts = [];
  if (running) parts.push(`${track.names[running[2]]} ran for ${spanText(running[1])}`);
  if (wait) parts.push(`waits at the gate for ${spanText(wait[1])}: ${REASONS[wait[2]] ?? wait[2]}`);
  return `${track.tenant}: ${parts.join("; ") || "no work on the device"}`;
}

export function TimelinePage(props: { node: NodeData | undefined; timeline: TimelineData | undefined; gpu: number; theme: string }) {
  const { node, gpu, theme } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const [kept, setKept] = useState<TimelineData | null>(null);
  const [view, setView] = useState<View | null>(null);
  const [hover, setHover] = useState("");
  const data = kept ?? (props.timeline?.gpu === gpu ? props.timeline : undefined);
  const whole = data && !data.problem ? data.end_ns - data.start_ns : 1;
  const shown = view ?? { from: 0, to: whole };
  useEffect(() => {
    if (canvas.current && data && !data.problem) draw(canvas.current, data, shown);
  }, [data, view, theme]);
  useEffect(() => {
    const redraw = () => canvas.current && data && !data.problem && draw(canvas.current, data, shown);
    window.addEventListener("resize", redraw);
    return () => window.removeEventListener("resize", redraw);
  });
  const zoom = (factor: number, around = (shown.from + shown.to) / 2) => {
    const length = Math.min(whole, Math.max(10_000, (shown.to - shown.from) * factor));
    const part = (around - shown.from) / (shown.to - shown.from);
    const from = Math.max(0, Math.min(whole - length, around - part * length));
    setKept(kept ?? data ?? null);
    setView(length >= whole ? null : { from, to: from + length });
  };
  const move = (part: number) => {
    const length = shown.to - shown.from;
    const from = Math.max(0, Math.min(whole - length, shown.from + part * length));
    setKept(kept ?? data ?? null);
    setView({ from, to: from + length });
  };
  const place = (event: MouseEvent) => {
    const element = canvas.current;
    if (!element) return { at: 0, row: 0 };
    const box = element.getBoundingClientRect();
    const left = Math.min(LEFT, element.clientWidth * 0.28);
    const part = (event.clientX - box.left - left) / (element.clientWidth - left);
    return {
      at: shown.from + part * (shown.to - shown.from),
      row: Math.floor((event.clientY - box.top - TOP) / ROW),
    };
  };
  const keyed = (event: KeyboardEvent) => {
    const actions: Record<string, () => void> = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      ArrowLeft: () => move(-0.25),
      ArrowRight: () => move(0.25),
      Home: () => setView(null),
      " ": () => setKept(kept ? null : (data ?? null)),
    };
    const action = actions[event.key];
    if (action) {
      event.preventDefault();
      action();
    }
  };
  return (
    <section class="card" aria-label="timeline">
      <div class="choices">
        <label class="choice">
          GPU{" "}
          <select value={gpu} onChange={(event) => (location.hash = `#/timeline/${event.currentTarget.value}`)}>
            {(node?.gpus ?? []).map((one) => (
              <option key={one.index} value={one.index}>
                {one.index}: {one.name}
              </option>
            ))}
          </select>
        </label>
        <button type="button" aria-pressed={kept !== null} onClick={() => setKept(kept ? null : (data ?? null))}>
          {kept ? "Continue" : "Stop"}
        </button>
        <button type="button" onClick={() => zoom(0.5)}>
          Zoom in
        </button>
        <button type="button" onClick={() => zoom(2)}>
          Zoom out
        </button>
        <button type="button" onClick={() => move(-0.25)} aria-label="Earlier">
          ◀
        </button>
        <button type="button" onClick={() => move(0.25)} aria-label="Later">
          ▶
        </button>
        <a class="button" href="/api/trace?seconds=2" download="cotenant-trace.json">
          Full trace (2 s) for Perfetto
        </a>
      </div>
      {data?.problem ? <Notice tone="bad">{data.problem}</Notice> : null}
      {data && !data.problem ? (
        <>
          <p class="muted">
            {data.exact ? "As the device recorded it." : "Expected from the launches: this device records nothing."}{" "}
            {percent(data.busy_ppm)} busy. Wheel or + and - zoom, arrow keys move, space stops; open the trace in
            ui.perfetto.dev.
          </p>
          <canvas
            ref={canvas}
            class="timeline"
            tabIndex={0}
            role="img"
            aria-label={`timeline of GPU ${gpu}: ${data.tracks.map((track) => `${track.tenant} ran ${track.running.length} times and waited ${track.waits.length} times`).join(", ") || "no tenants"}`}
            onKeyDown={keyed}
            onMouseMove={(event) => {
              const { at, row } = place(event);
              setHover(at < shown.from ? "" : describe(data, row, at));
            }}
            onMouseLeave={() => setHover("")}
            onWheel={(event) => {
              event.preventDefault();
              zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event).at);
            }}
          />
          <p class="hover" role="status">
            {hover || "Point at the timeline for values."}
          </p>
          <ul class="legend">
            <li>
              <span class="swatch online" /> online kernels
            </li>
            <li>
              <span class="swatch offline" /> offline kernels
            </li>
            <li>
              <span class="swatch second" /> waits at the gate
            </li>
            <li>
              <span class="swatch idle" /> idle device
            </li>
          </ul>
        </>
      ) : data ? null : (
        <Notice>Reading the buffers…</Notice>
      )}
    </section>
  );
}
