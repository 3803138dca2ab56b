// The page: navigation, the stream of data, the theme and the token.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { fetchJson, send, useStream } from "./data";
import type { About, Topics } from "./data";
import { count } from "./format";
import { Notice } from "./parts";
import { ClusterPage } from "./pages/cluster";
import { DecisionsPage } from "./pages/decisions";
import { DelaysPage } from "./pages/delays";
import { EventsPage } from "./pages/events";
import { GpusPage } from "./pages/gpus";
import { ServerPage } from "./pages/server";
import { TenantPage } from "./pages/tenant";
import { TimelinePage } from "./pages/timeline";
import "./style.css";

const PAGES: [string, string, (keyof Topics)[]][] = [
  ["gpus", "GPUs", ["node"]],
  ["delays", "Delays", ["node", "delays"]],
  ["decisions", "Decisions", ["node", "events"]],
  ["timeline", "Timeline", ["node", "timeline"]],
  ["events", "Events", ["node", "events"]],
  ["cluster", "Kubernetes", ["node", "cluster"]],
  ["server", "Server", ["node", "server"]],
];
const TITLES: Record<string, string> = { ...Object.fromEntries(PAGES.map(([page, title]) => [page, title])), tenant: "Tenant" };

function route(): [string, string] {
  const [page, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  return [page && page in TITLES ? page : "gpus", decodeURIComponent(rest.join("/"))];
}

function useRoute(): [string, string] {
  const [current, setCurrent] = useState(route());
  useEffect(() => {
    const changed = () => setCurrent(route());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return current;
}

function useTheme(): [string, () => void] {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const [theme, setTheme] = useState(localStorage.getItem("theme") ?? (system.matches ? "dark" : "light"));
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    const changed = () => {
      if (localStorage.getItem("theme")) return; // the reader chose one
      document.documentElement.dataset.theme = system.matches ? "dark" : "light";
      setTheme(system.matches ? "dark" : "light");
    };
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  const next = theme === "dark" ? "light" : "dark";
  return [
    theme,
    () => {
      localStorage.setItem("theme", next);
      document.documentElement.dataset.theme = next;
      setTheme(next);
    },
  ];
}

function TokenForm({ onDone, isRequired }: { onDone: () => void; isRequired: boolean }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    const failed = await send("/api/login", { token: token.trim() });
    setProblem(failed);
    if (!failed) onDone();
  };
  return (
    <form class="card token" onSubmit={submit}>
      <h2>{isRequired ? "This console needs its token" : "Operate"}</h2>
      <p>
        <code>cotenant web</code> prints an address with the token; the token is also in the file web-token of the state
        directory.
      </p>
      <label>
        Token <input type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} />
      </label>
      <button type="submit" class="primary">
        Enter
      </button>
      {problem ? <Notice tone="bad">{problem}</Notice> : null}
    </form>
  );
}

function Content({ about, page, detail, theme }: { about: About; page: string; detail: string; theme: string }) {
  const topics = page === "tenant" ? (["node"] as (keyof Topics)[]) : PAGES.find(([name]) => name === page)![2];
  const gpu = /^\d+$/.test(detail) ? Number(detail) : 0;
  const [received, state] = useStream(topics, page === "timeline" ? `&gpu=${gpu}&window_ms=300` : "");
  const { node } = received;
  return (
    <>
      <p class="link" role="status">
        <span class={`dot ${state}`} aria-hidden="true" />
        {state === "live" && node && !node.problem
          ? `node ${node.node.version}, ${count(node.tenants.length, "tenant")}, ${count(node.gpus.length, "GPU")}`
          : state === "lost"
            ? "The connection is lost; trying again."
            : "Connecting…"}
      </p>
      {page === "gpus" ? <GpusPage node={node} /> : null}
      {page === "tenant" ? <TenantPage node={node} name={detail} about={about} theme={theme} /> : null}
      {page === "delays" ? <DelaysPage node={node} delays={received.delays} /> : null}
      {page === "decisions" ? <DecisionsPage node={node} events={received.events} theme={theme} /> : null}
      {page === "timeline" ? <TimelinePage key={gpu} node={node} timeline={received.timeline} gpu={gpu} theme={theme} /> : null}
      {page === "events" ? <EventsPage events={received.events} /> : null}
      {page === "cluster" ? <ClusterPage cluster={received.cluster} /> : null}
      {page === "server" ? <ServerPage server={received.server} /> : null}
    </>
  );
}

function App() {
  const [about, setAbout] = useState<About | null>(null);
  const [problem, setProblem] = useState("");
  const [isAsking, setAsking] = useState(false);
  const [theme, toggleTheme] = useTheme();
  const [page, detail] = useRoute();
  const load = () =>
    fetchJson<About>("/api/about")
      .then((found) => {
        setAbout(found);
        setAsking(false);
      })
      .catch((error: Error) => setProblem(error.message));
  useEffect(() => {
    const given = /^#token=(.+)$/.exec(location.hash);
    if (given) {
      history.replaceState(null, "", location.pathname); // the token must not stay in the address
      void send("/api/login", { token: given[1] }).then(load);
    } else {
      void load();
    }
  }, []);
  useEffect(() => {
    document.title = `${page === "tenant" ? detail : TITLES[page]} - cotenant`;
  }, [page, detail]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <header class="top">
        <span class="brand">
          <img src="/icon.svg" alt="" width="24" height="24" /> cotenant
        </span>
        <nav aria-label="pages">
          {PAGES.map(([name, title]) => (
            <a key={name} href={`#/${name}`} aria-current={page === name ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        {about?.can_operate && !about.may_act ? (
          <button type="button" onClick={() => setAsking(true)}>
            Operate
          </button>
        ) : null}
        <button type="button" onClick={toggleTheme} aria-label={`Use the ${theme === "dark" ? "light" : "dark"} theme`}>
          {theme === "dark" ? "☀" : "☾"}
        </button>
      </header>
      <main id="main" tabIndex={-1}>
        <h1>{page === "tenant" ? `Tenant ${detail}` : TITLES[page]}</h1>
        {problem ? <Notice tone="bad">{problem}</Notice> : null}
        {about && (!about.may_read || isAsking) ? <TokenForm isRequired={!about.may_read} onDone={load} /> : null}
        {about?.may_read ? <Content about={about} page={page} detail={detail} theme={theme} /> : null}
      </main>
    </>
  );
}

render(<App />, document.getElementById("app")!);
