// Times how long a page takes to show the tenants: `node render.mjs ADDRESS TENANTS TIMES` prints milliseconds as JSON.
// Each time is a new browser context, so that nothing is cached.
import { chromium } from "playwright-core";

const [address, tenants, times] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.COTENANT_CHROMIUM,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
});
const taken = [];
try {
  for (let time = 0; time < Number(times); time += 1) {
    const context = await browser.newContext({ viewport: { width: 1200, height: 750 } });
    const page = await context.newPage();
    const begin = performance.now();
    await page.goto(address, { waitUntil: "commit" });
    await page.waitForFunction(
      (least) => {
        const rows = document.querySelectorAll("tbody tr th a");
        return rows.length >= least && rows[0].getBoundingClientRect().height > 0;
      },
      Number(tenants),
      { timeout: 60_000, polling: "raf" },
    );
    taken.push(performance.now() - begin);
    await context.close();
  }
} finally {
  await browser.close();
}
console.log(JSON.stringify(taken));
