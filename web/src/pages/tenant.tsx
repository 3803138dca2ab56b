// One tenant: charts, the explanation of its state, and what operators can do with it.
import { useEffect, useState } from "preact/hooks";
import { fetchJson, samplesOf, send } from "../data";
import type { About, NodeData, Tenant } from "../data";
import { age, duration, percent, size } from "../format";
import { Badge, Chart, Dialog, Notice } from "../parts";
import { stateOf, stateTone } from "./gpus";

interface Explanation {
  summary: string;
  causes: { kind: string; text: string; ts: string; entry: string; details: string[] }[];
}

function Explain({ name }: { name: string }) {
  const [explanation, setExplanation] = useState<Explanation | null>(null);
  const [problem, setProblem] = useState("");
  const [round, setRound] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    setProblem("");
    fetchJson<Explanation>(`/api/explain?tenant=${encodeURIComponent(name)}`)
      .then((found) => isCurrent && setExplanation(found))
      .catch((error: Error) => isCurrent && setProblem(error.message));
    return () => {
      isCurrent = false;
    };
  }, [name, round]);
  return (
    <section class="card" aria-label="explanation">
      <header>
        <h2>Why</h2>
        <button type="button" onClick={() => setRound(round + 1)}>
          Explain again
        </button>
      </header>
      {problem ? <Notice tone="bad">{problem}</Notice> : null}
      {explanation ? (
        <>
          <p>{explanation.summary}</p>
          <ul class="causes">
            {explanation.causes.map((cause, index) => (
              <li key={index}>
                <Badge tone="info">{cause.kind}</Badge> {cause.text}
                {cause.details.length ? <div class="muted">{cause.details.join("; ")}</div> : null}
                {cause.entry ? (
                  <details>
                    <summary>journal entry</summary>
                    <code>{cause.entry}</code>
                  </details>
                ) : null}
              </li>
            ))}
          </ul>
        </>
      ) : problem ? null : (
        <p class="muted">Reading the journal…</p>
      )}
    </section>
  );
}

type ActionName = "pause" | "resume" | "evict" | "set";
const QUESTIONS: Record<ActionName, string> = {
  pause: "Its kernels wait from the next launch on, until it is resumed.",
  resume: "It may launch kernels again.",
  evict: "Its work is drained, then it gets SIGTERM and, after its grace period, SIGKILL.",
  set: "The values that are not empty apply from its next launch or request on.",
};

function Actions({ tenant }: { tenant: Tenant }) {
  const [asked, setAsked] = useState<ActionName | "">("");
  const [values, setValues] = useState<Record<string, string>>({});
  const [problem, setProblem] = useState("");
  const [done, setDone] = useState("");
  const [isBusy, setBusy] = useState(false);
  const carryOut = async (event: Event) => {
    event.preventDefault();
    if (isBusy) return;
    const written = Object.entries(values).map(([name, value]) => [name, value.replace(/\s+/g, "")]);
    const fields = Object.fromEntries(written.filter(([, value]) => value));
    if (fields.priority && !/^[0-9]$/.test(fields.priority)) {
      setProblem("The priority is a number from 0 to 9.");
      return;
    }
    const body = asked === "set" ? { ...fields, ...(fields.priority ? { priority: Number(fields.priority) } : {}) } : {};
    setBusy(true);
    const failed = await send("/api/act", { action: asked, tenant: tenant.name, ...body });
    setBusy(false);
    setProblem(failed);
    if (!failed) {
      setDone(`${asked}: done`);
      setAsked("");
      setValues({});
    }
  };
  const field = (name: string, label: string, hint: string) => (
    <label>
      {label}
      <input
        name={name}
        placeholder={hint}
        value={values[name] ?? ""}
        onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })}
      />
    </label>
  );
  return (
    <div class="actions">
      {(["pause", "resume", "set", "evict"] as const).map((name) => (
        <button
          key={name}
          type="button"
          class={name === "evict" ? "danger" : ""}
          onClick={() => {
            setProblem("");
            setAsked(name);
          }}
        >
          {name === "set" ? "Set…" : name[0]!.toUpperCase() + name.slice(1)}
        </button>
      ))}
      {done ? <span role="status">{done}</span> : null}
      {asked ? (
        <Dialog title={`${asked[0]!.toUpperCase()}${asked.slice(1)} ${tenant.name}?`} onClose={() => setAsked("")}>
          <form onSubmit={carryOut}>
            <p>{QUESTIONS[asked]}</p>
            {asked === "set" ? (
              <div class="fields">
                {field("priority", "Priority", `${tenant.priority} of 0 to 9`)}
                {tenant.kind === "online" ? field("slo", "Objective", tenant.slo_ns ? duration(tenant.slo_ns) : "50ms") : null}
                {field("share", "Share", tenant.share_ppm ? percent(tenant.share_ppm) : "30%")}
                {field("memory", "Memory", tenant.quota_bytes ? size(tenant.quota_bytes) : "4GiB")}
              </div>
            ) : null}
            {problem ? <Notice tone="bad">{problem}</Notice> : null}
            <div class="actions">
              <button type="button" onClick={() => setAsked("")}>
                Cancel
              </button>
              <button type="submit" class={asked === "evict" ? "danger" : "primary"} disabled={isBusy}>
                Confirm
              </button>
            </div>
          </form>
        </Dialog>
      ) : null}
    </div>
  );
}

export function TenantPage(props: { node: NodeData | undefined; name: string; about: About; theme: string }) {
  const { node, name, theme } = props;
  if (!node) return <Notice>Reading the node…</Notice>;
  if (node.problem) return <Notice tone="bad">{node.problem}</Notice>;
  const tenant = node.tenants.find((one) => one.name === name);
  if (!tenant) {
    return (
      <>
        <Notice>{name} is not here now.</Notice>
        <Explain name={name} />
      </>
    );
  }
  const samples = samplesOf(tenant);
  const at = samples.map((sample) => sample.at_s);
  const facts: [string, string][] = [
    ["GPU", tenant.gpu < 0 ? "none" : String(tenant.gpu)],
    ["Priority", String(tenant.priority)],
    ["Share", tenant.share_ppm ? `${percent(tenant.share_ppm)} (${tenant.limit})` : "none"],
    ["Memory", `${size(tenant.held_bytes)} of ${tenant.quota_bytes ? size(tenant.quota_bytes) : "no quota"}`],
    ["Restarts", String(tenant.restarts)],
    ["Process", `${tenant.pid}, user ${tenant.uid}`],
    ["Age", age(tenant.age_s)],
  ];
  return (
    <>
      <section class="card" aria-label={`tenant ${tenant.name}`}>
        <header>
          <h2>{tenant.name}</h2>
          <Badge tone={tenant.kind}>{tenant.kind}</Badge>
          <Badge tone={stateTone(tenant)}>{stateOf(tenant)}</Badge>
        </header>
        <p>
          <code>{tenant.command || "unknown command"}</code>
        </p>
        <dl class="facts">
          {facts.map(([label, value]) => (
            <div key={label}>
              <dt>{label}</dt>
              <dd>{value}</dd>
            </div>
          ))}
        </dl>
        {tenant.hold ? <p>{tenant.hold}</p> : null}
        {props.about.may_act ? <Actions tenant={tenant} /> : null}
      </section>
      <div class="charts">
        {tenant.kind === "online" ? (
          <Chart
            title="Latency against objective"
            unit="ms"
            at={at}
            theme={theme}
            lines={[
              { label: "p99", color: "online", values: samples.map((one) => one.p99_ms), fill: true },
              { label: "p50", color: "second", values: samples.map((one) => one.p50_ms) },
              { label: "objective", color: "bad", values: samples.map((one) => one.slo_ms), dash: [6, 4] },
            ]}
          />
        ) : null}
        <Chart
          title="Device time and share"
          unit="%"
          at={at}
          theme={theme}
          lines={[
            { label: "used", color: tenant.kind, values: samples.map((one) => one.used), fill: true },
            { label: "lent", color: "second", values: samples.map((one) => one.lent) },
            { label: "share", color: "bad", values: samples.map((one) => one.share), dash: [6, 4] },
          ]}
        />
        <Chart
          title="Kernels"
          unit="per second"
          at={at}
          theme={theme}
          lines={[{ label: "launches", color: tenant.kind, values: samples.map((one) => one.launches), fill: true }]}
        />
        <Chart
          title="Waiting at the gate"
          unit="% of the time"
          at={at}
          theme={theme}
          lines={[{ label: "waiting", color: "warn", values: samples.map((one) => one.waited), fill: true }]}
        />
        <Chart
          title="Memory against quota"
          unit="GiB"
          at={at}
          theme={theme}
          lines={[
            { label: "held", color: tenant.kind, values: samples.map((one) => one.memory_gib), fill: true },
            { label: "quota", color: "bad", values: samples.map((one) => one.quota_gib), dash: [6, 4] },
          ]}
        />
      </div>
      <Explain name={tenant.name} />
    </>
  );
}
