// The broker's page, as operators see it at a desk and on a phone: a client arrives over QUIC, moves to another
// address, and is disconnected; a viewer cannot do that, and the administrator of a twin sees nothing.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import dgram from "node:dgram";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { launch, picture, trust } from "./chromium.mjs";
import { BINARY, PATIENCE_MS, Server, eventually } from "./fulmar.mjs";

const AXE = readFileSync(new URL("../../web/node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const DESK = { width: 1280, height: 800 };
const PHONE = { width: 390, height: 844 };
const PASSWORD = "correct horse";

let server;
before(async () => {
  server = await Server.start({ settings: "[platform]\nenabled = false\n" });
  for (const [name, role] of [["ann", "administrator"], ["vic", "viewer"]]) {
    const words = ["ctl", "users", "add", name, "--role", role, "--data", server.data];
    execFileSync(BINARY, words, { input: `${PASSWORD}\n` });
  }
  for (const words of [["add", "plant"], ["allow", "plant", "publish", "plant/%u/#"]]) {
    execFileSync(BINARY, ["ctl", "roles", ...words, "--data", server.data]);
  }
});
after(() => server?.close());

/** Passes datagrams of one client on, from an address that can change. */
class Relay {
  static async start(port) {
    const relay = new Relay();
    relay.port = port;
    relay.near = dgram.createSocket("udp4");
    relay.near.bind(0, "127.0.0.1");
    await once(relay.near, "listening");
    relay.far = [];
    await relay.move("127.0.0.1");
    relay.near.on("message", (datagram, from) => {
      relay.client = from.port;
      relay.far.at(-1).send(datagram, port, "127.0.0.1");
    });
    return relay;
  }

  /** What the broker still sends to the old address arrives too. */
  async move(address) {
    const far = dgram.createSocket("udp4");
    far.bind(0, address);
    await once(far, "listening");
    far.on("message", (datagram) => this.near.send(datagram, this.client, "127.0.0.1"));
    this.far.push(far);
  }

  close() {
    for (const socket of [this.near, ...this.far]) socket.close();
  }
}

/** `fulmar sub` over QUIC by way of a relay. */
async function arrive(t, id) {
  const relay = await Relay.start(server.port("quic"));
  const url = `quic://127.0.0.1:${relay.near.address().port}`;
  const client = spawn(BINARY, ["sub", url, "-t", "t/#", "-i", id, "--cafile", server.authority], { stdio: "ignore" });
  t.after(async () => {
    const ended = once(client, "exit");
    client.kill("SIGINT");
    await ended;
    relay.close();
  });
  return relay;
}

function publish() {
  execFileSync(BINARY, ["pub", `mqtt://127.0.0.1:${server.port("mqtt")}`, "-q", "1", "-t", "t/x", "-m", "21.5"]);
}

async function open(t, at, viewport, { colorScheme = "light", path = "/" } = {}) {
  const browser = await launch(trust.installed(at));
  t.after(() => browser.close());
  const context = await browser.newContext({ viewport, colorScheme, bypassCSP: true, reducedMotion: "reduce" });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  page.problems = [];
  page.on("pageerror", (error) => page.problems.push(error.message));
  await page.goto(`https://127.0.0.1:${at.port("https")}${path}`);
  return page;
}

/** On this machine, the overview needs no login. */
async function toLogin(page) {
  await page.getByTestId("onlooker").getByRole("link", { name: "Log in" }).click();
  await page.getByTestId("broker-login").waitFor();
}

async function logIn(page, user, password = PASSWORD) {
  await page.getByLabel("User name").fill(user);
  await page.getByLabel("Password", { exact: true }).last().fill(password);
  await page.getByRole("button", { name: "Log in" }).click();
}

const section = (page, name) => page.getByRole("navigation", { name: "Broker" }).getByRole("link", { name }).click();
const textOf = (page, id) => page.getByTestId(id).textContent({ timeout: 1000 }).catch(() => "");

/** axe-core finds nothing, and nothing is wider than the screen. */
async function sound(page, name) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate((rules) => globalThis.axe.run(document, { runOnly: rules }), RULES);
  assert.deepEqual(violations.map(({ id, nodes }) => [name, id, nodes.map(({ html }) => html)]), []);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(width <= page.viewportSize().width, `${name} is ${width} px wide`);
}

for (const [place, viewport] of Object.entries({ desk: DESK, phone: PHONE })) {
  test(`an administrator sees a client arrive over QUIC and move, and disconnects it: ${place}`, async (t) => {
    const id = `meter/${place}`;
    const page = await open(t, server, viewport);
    await page.getByTestId("onlooker").getByText("fulmar ctl users add NAME --role administrator").waitFor();
    await page.getByTestId("health").getByText("All is well").waitFor();
    if (place === "desk") await picture(page, "broker-overview");
    assert.equal(await page.getByTestId("logout").count(), 0);
    await sound(page, "overview without a login");
    await toLogin(page);
    await page.getByRole("heading", { name: "MQTT broker" }).waitFor();
    assert.ok(!(await page.getByText("Meter reading").isVisible()));
    await logIn(page, "ann", "wrong");
    await page.getByText("Wrong user name or password.").waitFor();
    await logIn(page, "ann");
    await eventually("an empty broker", async () => (await textOf(page, "tile-connections")).startsWith("0"));
    const relay = await arrive(t, id);
    await eventually("the client to arrive", async () => (await textOf(page, "tile-connections")).startsWith("1"));
    await eventually("its transport", async () => (await textOf(page, "transports")).includes("QUIC"));
    await section(page, "Clients");
    await page.getByRole("link", { name: id }).click();
    await eventually("its path", async () => {
      publish();
      return (await textOf(page, "migrations")) === "0";
    });
    await eventually("its address", async () => /^127\.0\.0\.1:/.test(await textOf(page, "address")));
    await relay.move("127.0.0.2");
    await eventually("its new address", async () => {
      publish();
      return (await textOf(page, "migrations")) === "1";
    });
    await eventually("its new address", async () => /^127\.0\.0\.2:/.test(await textOf(page, "address")));
    await sound(page, "client");
    const closed = () => server.log.split("closed by operator").length;
    const before = closed();
    await page.getByRole("button", { name: "Disconnect" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Disconnect" }).click();
    await eventually("the client to be disconnected", () => closed() > before);
    await page.getByText(`${id} gets disconnected.`).waitFor();
    assert.deepEqual(page.problems, []);
  });
}

test("a viewer sees the client and can do nothing to it", async (t) => {
  await arrive(t, "pump");
  const page = await open(t, server, DESK);
  await toLogin(page);
  await logIn(page, "vic");
  await section(page, "Clients");
  await page.getByRole("link", { name: "pump" }).click();
  await page.getByTestId("connection").waitFor();
  assert.equal(await page.getByTestId("actions").count(), 0);
  assert.equal(await page.getByRole("button", { name: /disconnect|ban/i }).count(), 0);
  const refused = await page.evaluate(async () => {
    const headers = { "x-fulmar-session": localStorage.getItem("fulmar-broker-session") };
    const response = await fetch("/api/admin/v1/clients/pump", { method: "DELETE", headers });
    return [response.status, (await response.json()).detail];
  });
  assert.deepEqual(refused, [403, "requires the role operator; yours is viewer, which an administrator can change"]);
  // Without the page's secret, the cookie is nobody's.
  assert.equal(await page.evaluate(async () => (await fetch("/api/admin/v1/me")).status), 401);
  await page.getByTestId("logout").click();
  await page.getByTestId("broker-login").waitFor();
});

test("an administrator adds a rule to a role and removes it; a viewer has no such thing", async (t) => {
  const page = await open(t, server, PHONE);
  await toLogin(page);
  await logIn(page, "ann");
  await section(page, "Rules");
  const role = page.getByRole("region", { name: "Role plant" });
  await role.getByLabel("Effect").selectOption("deny");
  await role.getByLabel("Action").selectOption("subscribe");
  await role.getByLabel("Topic or filter").fill("plant/secret");
  await role.getByRole("button", { name: "Add the rule" }).click();
  const row = role.getByRole("row").filter({ hasText: "plant/secret" });
  await row.getByText("deny").waitFor();
  const rules = () => JSON.parse(execFileSync(BINARY, ["ctl", "roles", "show", "plant", "--json", "--data", server.data])).rules;
  assert.deepEqual(rules().filter(({ topic }) => topic === "plant/secret"), [
    { action: "subscribe", topic: "plant/secret", allow: false, priority: 0 },
  ]);
  await row.getByRole("button", { name: "Remove" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove" }).click();
  await row.waitFor({ state: "detached" });
  assert.equal(rules().length, 1);
  assert.deepEqual(page.problems, []);

  const other = await open(t, server, DESK);
  await toLogin(other);
  await logIn(other, "vic");
  await section(other, "Rules");
  await other.getByRole("button", { name: "Explain" }).waitFor();
  assert.equal(await other.getByTestId("roles").count(), 0);
});

for (const [place, viewport] of Object.entries({ desk: DESK, phone: PHONE })) {
  for (const colorScheme of ["light", "dark"]) {
    test(`every screen is sound: ${place}, ${colorScheme}`, async (t) => {
      publishRetained();
      await arrive(t, "pump");
      const page = await open(t, server, viewport, { colorScheme });
      await toLogin(page);
      await sound(page, "log in");
      await logIn(page, "ann");
      await eventually("the overview", async () => (await textOf(page, "transports")).includes("QUIC"));
      await eventually("the chart", async () => Number(await page.getByTestId("chart").getAttribute("data-points")) > 1);
      await sound(page, "overview");
      await section(page, "Clients");
      await page.getByRole("link", { name: "pump" }).waitFor();
      await sound(page, "clients");
      await section(page, "Sessions");
      await page.getByRole("link", { name: "pump" }).click();
      await page.getByText("t/#").waitFor();
      await sound(page, "session");
      await section(page, "Topics");
      await page.getByRole("button", { name: "Levels below plant" }).click();
      await page.getByRole("button", { name: "power" }).click();
      await page.getByTestId("message").getByText("4.2").waitFor();
      await page.getByRole("button", { name: "Watch" }).click();
      await page.getByTestId("tap").getByText("plant/power").waitFor();
      await sound(page, "topics");
      await section(page, "Rules");
      await page.getByLabel("Topic", { exact: true }).fill("plant/power");
      await page.getByRole("button", { name: "Explain" }).click();
      await page.getByTestId("decision").getByText("allowed").waitFor();
      await page.getByRole("region", { name: "Role plant" }).getByText("plant/%u/#").waitFor();
      await sound(page, "rules");
      await section(page, "Server");
      await page.getByTestId("certificates").waitFor();
      const budgets = page.getByTestId("budgets");
      for (const name of ["Sessions and subscriptions", "Topic aliases", "Sessions and messages"]) {
        assert.ok(await budgets.getByRole("meter", { name }).isVisible(), name);
      }
      await sound(page, "server");
      assert.deepEqual(page.problems, []);
    });
  }
}

function publishRetained() {
  const url = `mqtt://127.0.0.1:${server.port("mqtt")}`;
  execFileSync(BINARY, ["pub", url, "-q", "1", "-r", "-t", "plant/power", "-m", "4.2"]);
}

test("an admin of the platform operates the broker in the app, and that of a twin sees nothing", async (t) => {
  const platform = await Server.start();
  t.after(() => platform.close());
  const data = ["--data", platform.data];
  const input = { input: `${PASSWORD}\n` };
  execFileSync(BINARY, ["twin", "add", "rural", ...data]);
  execFileSync(BINARY, ["user", "add", "root", "--admin", ...data], input);
  execFileSync(BINARY, ["user", "add", "tom", "--twin", "rural", "--role", "admin", ...data], input);
  const page = await open(t, platform, DESK, { path: "/broker" });
  await eventually("the users", async () => {
    const status = await page.evaluate(async (body) => {
      const headers = { "content-type": "application/json" };
      return (await fetch("/api/v1/session", { method: "POST", headers, body })).status;
    }, JSON.stringify({ user: "tom", password: PASSWORD }));
    return status < 300;
  });
  await page.goto(`https://127.0.0.1:${platform.port("https")}/`);
  await logIn(page, "tom");
  await page.locator(".shell").waitFor();
  assert.equal(await page.getByTestId("nav-broker").count(), 0);
  const statuses = await page.evaluate(async (body) => {
    const headers = { "content-type": "application/json" };
    const { token } = await (await fetch("/api/v1/session", { method: "POST", headers, body })).json();
    const ask = (path) => fetch(`/api/admin/v1${path}`, { headers: { authorization: `Bearer ${token}` } });
    return Promise.all(["/overview", "/clients", "/history"].map(async (path) => (await ask(path)).status));
  }, JSON.stringify({ user: "tom", password: PASSWORD }));
  assert.deepEqual(statuses, [403, 403, 403]);
  await page.goto(`https://127.0.0.1:${platform.port("https")}/broker`);
  await toLogin(page);
  await logIn(page, "tom");
  await page.getByText("this user has no administration role").waitFor();

  const other = await open(t, platform, DESK);
  await logIn(other, "root");
  await other.locator('nav.side [data-testid="nav-broker"]').click();
  await eventually("the overview", async () => (await textOf(other, "tile-connections")).includes("connections"));
  await sound(other, "overview in the app");
  assert.deepEqual(other.problems, []);
});
