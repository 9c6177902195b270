// Pages that are no app: what an operator is greeted with, under axe-core's rules in both themes at a desk and on a
// phone, and the report of an experiment, whose widest table is whole on a desk's screen.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { launch, trust } from "./chromium.mjs";
import { BINARY, Server } from "./fulmar.mjs";

// The app's tests use it as well, and its packages are there before these tests run.
const AXE = readFileSync(new URL("../../web/node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const DESK = { width: 1440, height: 900 };
const PHONE = { width: 360, height: 740 };

let server, browser, folder;
before(async () => {
  server = await Server.start();
  browser = await launch(trust.installed(server));
  folder = mkdtempSync(join(tmpdir(), "fulmar-report-"));
});
after(async () => {
  await browser?.close();
  await server?.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

async function open(t, address, viewport, colorScheme = "light") {
  // The page's policy allows no script, and axe-core is one.
  const context = await browser.newContext({ viewport, colorScheme, bypassCSP: true });
  t.after(() => context.close());
  const page = await context.newPage();
  await page.goto(address);
  return page;
}

for (const colorScheme of ["light", "dark"]) {
  for (const [place, viewport] of Object.entries({ desk: DESK, phone: PHONE })) {
    test(`axe-core finds nothing on the operators' page: ${colorScheme}, ${place}`, async (t) => {
      const page = await open(t, `https://127.0.0.1:${server.port("https")}/`, viewport, colorScheme);
      await page.getByRole("heading", { name: /^Fulmar / }).waitFor();
      const background = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      assert.equal(background, colorScheme === "dark" ? "rgb(20, 23, 27)" : "rgb(255, 255, 255)");
      await page.evaluate(AXE);
      const { violations, passes } = await page.evaluate((rules) => globalThis.axe.run(document, { runOnly: rules }), RULES);
      assert.deepEqual(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)]), []);
      assert.ok(passes.some(({ id }) => id === "color-contrast"), "it looked at the colours");
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= viewport.width, `${width} px wide`);
    });
  }
}

/** An experiment as wide as the widest of ours, bulk-goals-group: two conditions and 29 measures. */
function writeResults() {
  const numbers = [...Array(29).keys()];
  const measures = numbers.map((number) =>
    [
      `[measures.m${number}]`,
      `title = "Seconds until the slowest receiver has all, with repairs (${number})"`,
      'unit = "kB/s a receiver"',
      'from = "lines"',
      'role = "client"',
      'field = "ms"',
    ].join("\n"),
  );
  const experiment = `title = "Wide"\nabout = "Wide."\nrepetitions = 3\ntimeout_s = 10\nhosts = ["client"]
[matrix]\nloss = [0, 30]\ntransport = ["multicast with repair", "unicast"]
[roles.client]\nhost = "client"\nrun = ["true"]\n${measures.join("\n")}\n`;
  const environment = { kernel: "Linux", cpu: "Z80", cores: 2, memory_mib: 64, version: "0", load: 0.5, beside: 1 };
  const samples = [];
  for (const loss of ["0", "30"]) {
    for (const transport of ["multicast with repair", "unicast"]) {
      for (const repetition of [0, 1, 2]) {
        // Figures with all the digits that are ever written, and intervals.
        const values = Object.fromEntries(numbers.map((number) => [`m${number}`, 12345.678 * (1 + repetition / 7)]));
        const outcome = { outcome: "ok", reason: "", alone: true, values, points: {}, environment };
        samples.push({ experiment: "wide", cell: { loss, transport }, repetition, seed: 1, began_s: 1.79e9, took_s: 2, ...outcome });
      }
    }
  }
  writeFileSync(join(folder, "experiment.toml"), experiment);
  writeFileSync(join(folder, "samples.jsonl"), samples.map((sample) => `${JSON.stringify(sample)}\n`).join(""));
}

test("a report's widest table is whole at 1440 pixels", async (t) => {
  writeResults();
  execFileSync(BINARY, ["lab", "report", folder]);
  const page = await open(t, pathToFileURL(join(folder, "report.html")).href, DESK);
  await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  const tables = await page.evaluate(() =>
    [...document.querySelectorAll(".scroll")].map((box) => {
      const { left, right } = box.getBoundingClientRect();
      const columns = box.querySelectorAll("thead th").length;
      return { columns, left, right, scrollWidth: box.scrollWidth, clientWidth: box.clientWidth };
    }),
  );
  assert.ok(Math.max(...tables.map(({ columns }) => columns)) >= 11, JSON.stringify(tables));
  for (const table of tables) {
    assert.ok(table.scrollWidth <= table.clientWidth, `cut: ${JSON.stringify(table)}`);
    assert.ok(table.left >= 0 && table.right <= DESK.width, `beside the screen: ${JSON.stringify(table)}`);
  }
});
