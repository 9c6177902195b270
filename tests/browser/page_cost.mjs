// What the broker's page costs the broker: CPU-seconds with the page open beside those without it, in turn, with many
// clients connected. A benchmark, run by `make bench-page`; the tests leave it out.

import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { launch, trust } from "./chromium.mjs";
import { BINARY, Server } from "./fulmar.mjs";

const CLIENTS = Number(process.env.FULMAR_CLIENTS ?? 10_000);
const SECONDS = Number(process.env.FULMAR_SECONDS ?? 60);
const SCREENS = [null, "Overview", null, "Clients", null, "Topics", null];
/** `sysconf(_SC_CLK_TCK)` of Linux on all machines that Fulmar runs on. */
const TICKS_PER_SECOND = 100;

/** CPU-seconds of a process so far, its own and the kernel's for it. */
function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
}

async function costOver(pid, seconds) {
  const before = cpuSeconds(pid);
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  return cpuSeconds(pid) - before;
}

/** Connected MQTT 5.0 clients without a keep alive. */
async function arrive(port) {
  const clients = [];
  while (clients.length < CLIENTS) {
    const next = Array.from({ length: Math.min(500, CLIENTS - clients.length) }, async (_, at) => {
      const id = `page-cost-${String(clients.length + at).padStart(6, "0")}`;
      const client = connect(port, "127.0.0.1");
      client.on("error", (error) => console.error(error.message));
      // Of version 5, with clean start, no keep alive and no properties.
      const head = Buffer.from(`\0\x04MQTT\x05\x02\0\0\0\0${String.fromCharCode(id.length)}${id}`, "latin1");
      client.write(Buffer.concat([Buffer.from([0x10, head.length]), head]));
      const [connack] = await once(client, "data");
      if (connack[0] !== 0x20 || connack[3] !== 0) throw new Error(`${id} is refused: ${connack.toString("hex")}`);
      return client;
    });
    clients.push(...(await Promise.all(next)));
  }
  return clients;
}

/** Each publishes every ten seconds. */
function publishInTurn(clients) {
  const publish = Buffer.from("\x30\x0c\0\x05plant\x0021.5", "latin1");
  let turn = 0;
  return setInterval(() => {
    turn = (turn + 1) % 100;
    for (let at = turn; at < clients.length; at += 100) clients[at].write(publish);
  }, 100);
}

async function logIn(browser, server) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  await page.goto(`https://127.0.0.1:${server.port("https")}/`);
  await page.getByLabel("User name").fill("ann");
  await page.getByLabel("Password", { exact: true }).last().fill("correct horse");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("navigation", { name: "Broker" }).waitFor();
  return page;
}

const server = await Server.start({ settings: "[platform]\nenabled = false\n" });
const add = ["ctl", "users", "add", "ann", "--role", "administrator", "--data", server.data];
execFileSync(BINARY, add, { input: "correct horse\n" });
const pid = server.process.pid;
const clients = await arrive(server.port("mqtt"));
const publishing = publishInTurn(clients);
const browser = await launch(trust.installed(server));
try {
  for (const screen of SCREENS) {
    const open = clients.filter(({ readyState }) => readyState === "open").length;
    if (open < CLIENTS) throw new Error(`only ${open} clients are still connected`);
    let page;
    if (screen) {
      page = await logIn(browser, server);
      await page.getByRole("navigation", { name: "Broker" }).getByRole("link", { name: screen }).click();
    }
    // What opening it costs is not part of it.
    await costOver(pid, 3);
    const cost = await costOver(pid, SECONDS);
    const share = ((100 * cost) / SECONDS).toFixed(2);
    const shown = screen ?? "no page";
    console.log(`${CLIENTS} clients, ${shown}: ${cost.toFixed(2)} CPU-s in ${SECONDS} s, ${share} % of a core`);
    await page?.close();
  }
} finally {
  clearInterval(publishing);
  for (const client of clients) client.destroy();
  await browser.close();
  await server.close();
}
