// Tests of the console in a real browser: `make test-web` starts a node, a server and a cluster, and runs this file.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";
import { chromium } from "playwright-core";

const URL_BASE = process.env.COTENANT_WEB_URL;
const TOKEN = process.env.COTENANT_WEB_TOKEN;
const SHOTS = process.env.COTENANT_WEB_SHOTS;
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const TIMEOUT = { timeout: 60_000 };
// Each page, and a text that is visible once its data has arrived.
const PAGES = [
  ["gpus", "p99 latency"],
  ["delays", "Waiting on the device"],
  ["decisions", "its need is not known yet"],
  ["timeline/0", "As the device recorded it."],
  ["events", "What happened"],
  ["cluster", "Pairs"],
  ["server", "Rows per run"],
  ["tenant/web", "Latency against objective"],
];

let browser;
before(async () => {
  browser = await chromium.launch({
    executablePath: process.env.COTENANT_CHROMIUM ?? "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
  });
});
after(() => browser.close());

async function open(options, address) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const problems = [];
  page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (message.type() === "error") problems.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = request.url();
    if (!url.startsWith(URL_BASE) && !url.startsWith("data:")) problems.push(`a request to another host: ${url}`);
  });
  await page.goto(address);
  return { context, page, problems };
}

async function show(page, hash, text) {
  await page.evaluate((next) => {
    location.hash = `#/${next}`;
  }, hash);
  await page.getByText(text).first().waitFor(TIMEOUT);
}

async function findings(page) {
  await page.evaluate(AXE);
  const found = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  return found.violations
    .filter((one) => one.impact === "serious" || one.impact === "critical")
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
}

for (const [theme, width] of [
  ["light", 1200],
  ["dark", 1200],
  ["light", 500],
]) {
  test(`every page shows its data in the ${theme} theme at ${width} pixels, without serious axe findings`, async () => {
    const { context, page, problems } = await open({ viewport: { width, height: 750 }, colorScheme: theme }, URL_BASE);
    for (const [hash, text] of PAGES) {
      await show(page, hash, text);
      if (hash.startsWith("tenant")) await page.waitForTimeout(3000); // a chart needs several values
      assert.deepEqual(await findings(page), [], `${hash} in ${theme} at ${width}`);
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(overflow <= 0, `${hash} is ${overflow} pixels too wide at ${width}`);
      if (SHOTS) {
        const name = `${hash.split("/")[0]}-${theme}-${width}`;
        await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: width !== 500 });
      }
    }
    assert.deepEqual(problems, []);
    await context.close();
  });
}

test("the pages contain what they must show", async () => {
  const { context, page, problems } = await open({ viewport: { width: 1200, height: 750 } }, URL_BASE);
  await show(page, "gpus", "p99 latency");
  for (const name of ["web", "train", "batch"]) await page.getByRole("link", { name, exact: true }).waitFor(TIMEOUT);
  await page.getByText(/ms of 50\.0 ms/).first().waitFor(TIMEOUT);
  await page.getByText(/lent/).first().waitFor(TIMEOUT);
  const title = await page.locator("td.wide .bar").first().getAttribute("title");
  assert.match(title, /p50 .* p99 .* objective 50\.0 ms/);
  await show(page, "delays", "Waiting at the gate");
  await page.locator("td.heat5").first().waitFor(TIMEOUT);
  assert.match(await page.locator("td.heat5").first().getAttribute("title"), /was delayed by .* for .* of the time/);
  await show(page, "cluster", "Waiting");
  await page.getByText("no GPU has 40GiB free").waitFor(TIMEOUT);
  await page.getByText("1.25 ×").waitFor(TIMEOUT);
  assert.match(await page.locator(".cell").first().getAttribute("title"), /n1, GPU 0 .*online load 30 %/);
  await show(page, "server", "Rows per run");
  await page.getByRole("rowheader", { name: "slow" }).waitFor(TIMEOUT);
  await show(page, "tenant/web", "Why");
  await page.getByText(/web is here/).waitFor(TIMEOUT);
  assert.deepEqual(problems, []);
  await context.close();
});

test("the timeline shows kernels and waits, zooms by keyboard, and offers the whole trace", async () => {
  const { context, page } = await open({ viewport: { width: 1200, height: 750 } }, URL_BASE);
  await show(page, "timeline/1", "As the device recorded it."); // a tenant there is paused again and again
  const canvas = page.locator("canvas.timeline");
  await page.waitForFunction(
    () => /pulse ran [1-9]\d* times and waited [1-9]/.test(document.querySelector("canvas.timeline")?.getAttribute("aria-label") ?? ""),
    undefined,
    TIMEOUT,
  );
  const inked = () =>
    canvas.evaluate((element) => element.getContext("2d").getImageData(0, 0, element.width, element.height).data.reduce((sum, value) => sum + value, 0));
  await canvas.focus();
  await page.keyboard.press("Space");
  await page.getByRole("button", { name: "Continue" }).waitFor(TIMEOUT);
  const whole = await inked();
  assert.ok(whole > 0, "the timeline is empty");
  for (let times = 0; times < 4; times += 1) await page.keyboard.press("+");
  await page.waitForTimeout(200);
  assert.notEqual(await inked(), whole, "zooming changed nothing");
  const box = await canvas.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 90);
  await page.getByText(/^(pulse|batch): |^idle for|^busy/).first().waitFor(TIMEOUT);
  const [download] = await Promise.all([
    page.waitForEvent("download", TIMEOUT),
    page.getByRole("link", { name: /Perfetto/ }).click(),
  ]);
  const trace = JSON.parse(readFileSync(await download.path(), "utf8"));
  assert.ok(trace.traceEvents.length > 100, "the trace has no events");
  await context.close();
});

test("without the token nobody acts, and with it an operator acts after a confirmation", async () => {
  const reader = await open({ viewport: { width: 1200, height: 750 } }, URL_BASE);
  await show(reader.page, "tenant/batch", "Why");
  assert.equal(await reader.page.getByRole("button", { name: "Pause" }).count(), 0);
  await reader.context.close();
  const { context, page } = await open({ viewport: { width: 1200, height: 750 } }, `${URL_BASE}#token=${TOKEN}`);
  await show(page, "tenant/batch", "Why");
  await page.getByRole("button", { name: "Pause" }).click(TIMEOUT);
  assert.ok(!page.url().includes(TOKEN), "the token stays in the address");
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Confirm" }).click();
  await page.locator(".badge", { hasText: "paused" }).waitFor(TIMEOUT);
  await page.getByRole("button", { name: "Resume" }).click();
  await page.getByRole("button", { name: "Confirm" }).click();
  await page.locator(".badge", { hasText: "running" }).waitFor(TIMEOUT);
  await page.getByRole("button", { name: "Set…" }).click();
  await page.getByRole("textbox", { name: "Priority" }).fill("6");
  await page.getByRole("textbox", { name: "Memory" }).fill("2GiB");
  await page.getByRole("button", { name: "Confirm" }).click();
  await page.getByText("of 2.00 GiB").waitFor(TIMEOUT);
  await page.getByRole("button", { name: "Set…" }).click();
  await page.getByRole("textbox", { name: "Share" }).fill("many");
  await page.getByRole("button", { name: "Confirm" }).click();
  await page.getByText(/share = 'many': write a percentage/).waitFor(TIMEOUT);
  await page.keyboard.press("Escape");
  await context.close();
});

test("the console is usable by keyboard alone", async () => {
  const { context, page } = await open({ viewport: { width: 1200, height: 750 } }, URL_BASE);
  await show(page, "gpus", "p99 latency");
  await page.evaluate(() => document.body.focus());
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Skip to the content");
  for (let times = 0; times < 20; times += 1) {
    await page.keyboard.press("Tab");
    if ((await page.evaluate(() => document.activeElement?.textContent)) === "Events") break;
  }
  await page.keyboard.press("Enter");
  await page.getByText("What happened").waitFor(TIMEOUT);
  const before = await page.evaluate(() => document.documentElement.dataset.theme);
  await page.getByRole("button", { name: /Use the .* theme/ }).focus();
  await page.keyboard.press("Enter");
  assert.notEqual(await page.evaluate(() => document.documentElement.dataset.theme), before);
  await context.close();
});
