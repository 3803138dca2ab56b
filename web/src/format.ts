// Values as text, with units.
export function duration(ns: number | null | undefined): string {
  if (!ns) return "-";
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${digits(ns / 1e3)} µs`;
  if (ns < 1e9) return `${digits(ns / 1e6)} ms`;
  return `${digits(ns / 1e9)} s`;
}

export function age(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "-";
  for (const [unit, power] of [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]] as const) {
    if (bytes >= 2 ** power) return `${digits(bytes / 2 ** power)} ${unit}`;
  }
  return `${bytes} B`;
}

export function percent(ppm: number | null | undefined): string {
  if (ppm === null || ppm === undefined) return "-";
  const value = ppm / 1e4;
  if (value === 0) return "0 %";
  return value < 10 ? `${value.toFixed(1)} %` : `${Math.round(value)} %`;
}

export function rate(perSecond: number | null | undefined): string {
  if (!perSecond) return "0/s";
  if (perSecond >= 10000) return `${digits(perSecond / 1000)}k/s`;
  return perSecond >= 10 ? `${Math.round(perSecond)}/s` : `${perSecond.toFixed(1)}/s`;
}

export function digits(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function count(number: number, noun: string): string {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

export function clock(ms: number): string {
  return new Date(ms).toLocaleTimeString("en-GB");
}
