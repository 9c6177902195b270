// A utility's month, as docs/meters-app.md tells of it, on a server that has a year of readings: the office assigns work;
// a reader reads by hand, with a photo and without a network; the radio does the rest; two disagree; the office decides,
// puts a typo right and exports. Each step is done where its user does it.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch, noBackgroundSync, trust } from "./chromium.mjs";
import { PATIENCE_MS, Server, eventually } from "./fulmar.mjs";

const PHONE = { width: 360, height: 740 };
const DESK = { width: 1440, height: 900 };
const DAY_MS = 24 * 3600e3;
const WEEKS = 52;
const BY_HAND = 60;
const PASSWORDS = { olga: "office password", rob: "reader password" };
/** Unencrypted, of meter SEN 33225544, which shows 123.529 m³. */
const FRAME = "1844AE4C4455223368077A55000000041389E20100023B0000";

let server;
let browser;
/** Every page that is open, by its user. */
const pages = [];

function fulmar(words, input = "") {
  const where = ["--data", server.data, "--config", join(server.data, "fulmar.toml")];
  execFileSync(process.env.FULMAR_BIN ?? "fulmar", [...words, ...where], { input });
}

before(async () => {
  server = await Server.start();
  fulmar(["twin", "add", "gullhaven", "--name", "Gullhaven Water"]);
  fulmar(["user", "add", "olga", "--twin", "gullhaven", "--role", "office"], `${PASSWORDS.olga}\n`);
  fulmar(["user", "add", "rob", "--twin", "gullhaven", "--role", "reader"], `${PASSWORDS.rob}\n`);
  browser = await launch(trust.installed(server));
});
after(async () => {
  await browser?.close();
  await server?.close();
});

/** Somebody with a device of their own. */
async function open(user, viewport) {
  const context = await browser.newContext({ viewport, locale: "en-GB", acceptDownloads: true });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  pages.push([user, page]);
  await noBackgroundSync(browser, page);
  await page.goto(`https://127.0.0.1:${server.port("https")}/`);
  await page.fill("#user", user);
  await page.fill("#password", PASSWORDS[user]);
  await page.click('[data-testid="login"] button[type="submit"]');
  await page.waitForSelector('[data-testid="login"]', { state: "detached" });
  return page;
}

/** Asks the API in the page, as whoever is given. */
function ask(page, user, method, path, body) {
  return page.evaluate(
    async ([user, password, method, path, body]) => {
      const json = { "content-type": "application/json" };
      const login = { method: "POST", headers: json, body: JSON.stringify({ user, password }) };
      globalThis.tokens ??= {};
      globalThis.tokens[user] ??= (await (await fetch("/api/v1/session", login)).json()).token;
      const headers = { ...json, authorization: `Bearer ${globalThis.tokens[user]}` };
      const response = await fetch(`/api/v1/gullhaven${path}`, { method, headers, body: body && JSON.stringify(body) });
      return response.json();
    },
    [user, PASSWORDS[user], method, path, body],
  );
}

const meterAt = (number) => `m${String(number).padStart(3, "0")}`;

/** Sixty meters in cellars and one with radio, each read every week for a year; the last time a week ago. */
async function aYear(page) {
  const meters = Array.from({ length: BY_HAND }, (_, at) => ({
    id: meterAt(at + 1),
    serial: String(21_000_000 + at),
    street: `Gannet Hill ${at + 1}`,
    place: { lat: 53.35 + at * 2e-4, lon: -6.45 },
  }));
  meters.push({ id: "radio", address: "SEN-33225544-68-07", street: "Quay Street 1", place: { lat: 53.36, lon: -6.46 } });
  await ask(page, "olga", "POST", "/meter", { items: meters });
  const readings = meters.flatMap(({ id }, number) =>
    Array.from({ length: WEEKS }, (_, week) => ({
      id: `00000000-0000-4000-8000-${(number * 100 + week).toString(16).padStart(12, "0")}`,
      meter: id,
      at: new Date(Date.now() - (WEEKS - week) * 7 * DAY_MS).toISOString(),
      value: 70 + week,
      method: "manual",
    })),
  );
  for (let from = 0; from < readings.length; from += 1000) {
    const { results } = await ask(page, "olga", "POST", "/reading", { items: readings.slice(from, from + 1000) });
    assert.ok(results.every(({ status }) => status === "stored"));
  }
}

async function assign(office, name, filter, count) {
  await office.click('nav [data-testid="nav-assign-work"] >> visible=true');
  await office.click('[data-testid="new-list"]');
  await office.getByLabel("Name").fill(name);
  await office.getByLabel("Reader", { exact: true }).fill("rob");
  await office.getByLabel("Meters whose street or number contains").fill(filter);
  await office.locator("form").getByText(count, { exact: true }).waitFor();
  await office.getByRole("button", { name: "Create" }).click();
  await office.getByRole("link", { name }).waitFor();
}

const meterOf = (page) => decodeURIComponent(new URL(page.url()).pathname.split("/").at(-1));

/** Reads the meter that is shown; the app goes on to the next by itself. */
async function read(page, more, photo) {
  const meter = meterOf(page);
  const hint = await page.textContent("#value-hint");
  const value = Math.round((Number(hint.match(/Expected ([\d.]+)/)[1]) + more) * 1000) / 1000;
  await page.fill("#value", String(value));
  if (photo) {
    await page.setInputFiles('[data-testid="photo"]', { name: "meter.png", mimeType: "image/png", buffer: photo });
    await page.waitForSelector(".photo-input img");
  }
  await page.click('[data-testid="read"] button[type="submit"]');
  await page.waitForFunction((last) => !location.pathname.endsWith(last), encodeURIComponent(meter));
  return { meter, value };
}

async function everythingSent(page) {
  await page.click('nav.tabs [data-testid="nav-pending"]');
  await page.getByText("Everything is sent").waitFor();
}

async function openList(page, name) {
  await page.click('nav.tabs [data-testid="nav-lists"]');
  await page.getByRole("link", { name }).click();
  await page.locator('[data-testid="tasks"] a').first().click();
  await page.waitForSelector("#value-hint");
}

const street = (meter) => `Gannet Hill ${Number(meter.slice(1))}`;

/** What each page shows, for whoever reads why a step failed. */
async function shown() {
  const texts = pages.map(async ([user, page]) => {
    const text = await page.innerText("body", { timeout: 5000 }).catch(({ message }) => message);
    return `== ${user} at ${page.url()}\n${text.slice(0, 2000)}`;
  });
  return (await Promise.all(texts)).join("\n");
}

test("a utility's month", async () => {
  try {
    await month();
  } catch (cause) {
    throw new Error(`${cause.message}\n${await shown()}`, { cause });
  }
});

async function month() {
  const office = await open("olga", DESK);
  await aYear(office);
  await office.reload();

  // Assign.
  await assign(office, "November, cellars", "gannet hill", `${BY_HAND} meters`);
  await assign(office, "November, drive by", "quay", "1 meter");

  // By hand, with a photo, and two without a network.
  const phone = await open("rob", PHONE);
  await openList(phone, /November, cellars/);
  const taken = [await read(phone, 0.1), await read(phone, 0.2, await phone.screenshot())];
  await everythingSent(phone);
  await openList(phone, /November, cellars/);
  await phone.context().setOffline(true);
  taken.push(await read(phone, 0.3), await read(phone, 0.4));
  await phone.click('nav.tabs [data-testid="nav-pending"]');
  await eventually("both in the outbox", async () => (await phone.textContent('[data-testid="pending-count"]')) === "2");
  await phone.context().setOffline(false);
  await everythingSent(phone);

  // By radio: the office's screen counts it without being asked.
  await office.click('nav [data-testid="nav-overview"] >> visible=true');
  const driveBy = office.locator("main li", { hasText: "November, drive by" });
  await driveBy.getByText("0 of 1 meter").waitFor();
  const heard = { hex: FRAME, at: new Date().toISOString(), rssi_dbm: -70, mode: "T1" };
  const { results } = await ask(phone, "rob", "POST", "/frame", { receiver: "van", frames: [heard] });
  assert.equal(results[0].status, "stored", JSON.stringify(results));
  await driveBy.getByText("1 of 1 meter").waitFor();

  // Conflict: another phone says something else of the first meter.
  const [first, second] = taken;
  const other = await open("rob", PHONE);
  await other.click('nav.tabs [data-testid="nav-lists"]');
  await other.getByRole("link", { name: /November, cellars/ }).click();
  await other.getByText(/All \(60\)/).click();
  await other.locator(`[data-testid="tasks"] a[href*="${first.meter}?"]`).click();
  await other.fill("#value", String(first.value + 0.5));
  await other.click('[data-testid="read"] button[type="submit"]');
  await other.click('nav.tabs [data-testid="nav-pending"]');
  await other.locator('[data-testid="conflict"]').waitFor();
  assert.equal(await other.getByRole("button", { name: "Keep this one" }).count(), 0, "the office decides");

  // The office sees today's readings first, though there are thousands, and finds the conflict among all.
  await office.click('nav [data-testid="nav-readings"] >> visible=true');
  const rows = office.locator('[data-testid="readings"] tbody tr');
  await eventually("today's readings at the top", async () => {
    const top = (await rows.allTextContents()).slice(0, 6).join("\n");
    return top.includes("Quay Street 1") && taken.every(({ meter }) => top.includes(street(meter)));
  });
  await office.getByLabel("Only conflicts").check();
  await eventually("the conflict alone", async () => (await rows.count()) === 2);
  const kept = rows.filter({ hasText: `${first.value} m³` });
  await kept.getByRole("button", { name: "Keep this one" }).click();
  await office.getByText("No matching readings").waitFor();

  // Correct what was typed wrongly; the meter's history has what it was, who changed it and why.
  await office.getByLabel("Only conflicts").uncheck();
  const wrong = rows.filter({ hasText: street(second.meter) }).first();
  await wrong.getByRole("link").click();
  const history = office.locator('[data-testid="history"]');
  await history.getByRole("button", { name: /Correct/ }).first().click();
  const right = Math.round((second.value - 0.05) * 1000) / 1000;
  await office.getByLabel("Value, m³").fill(String(right));
  await office.getByLabel("Reason").fill("the photo shows it");
  await office.getByRole("dialog").getByRole("button", { name: "Correct", exact: true }).click();
  await history.getByText(`Was ${second.value} m³. Corrected by olga`).waitFor();
  await history.getByText("the photo shows it").waitFor();
  const used = office.locator('[data-testid="consumption"] .chart canvas');
  await used.waitFor();

  // Export: what counts, and what was corrected.
  await office.click('nav [data-testid="nav-readings"] >> visible=true');
  await office.getByLabel("Work list").selectOption({ label: "November, cellars" });
  const downloading = office.waitForEvent("download");
  await office.getByRole("button", { name: "CSV" }).click();
  const csv = readFileSync(await (await downloading).path(), "utf8");
  const lines = csv.trim().split(/\r?\n/);
  // Every text cell is quoted, so that no spreadsheet takes it for a formula: the names of the columns too.
  const cells = (line) => line.replaceAll('"', "").split(",");
  const names = cells(lines[0]);
  const table = lines.slice(1).map((line) => Object.fromEntries(cells(line).map((cell, at) => [names[at], cell])));
  const of = (meter) => table.filter((row) => row.meter === meter);
  assert.equal(table.length, 5, csv);
  const [corrected] = of(second.meter);
  assert.deepEqual(
    [corrected.value, corrected.flags, corrected.original_value, corrected.changed_by, corrected.change_reason].map(String),
    [String(right), "corrected", String(second.value), "olga", "the photo shows it"],
  );
  assert.deepEqual(of(first.meter).map(({ flags }) => flags).sort(), ["", "superseded"]);
}
