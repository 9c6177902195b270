// The app in Debian's Chromium against a stand-in for the API: a reader's day with a stretch offline, a
// conflict, the office's screens; on each screen axe-core's rules and the width of a small phone.
// `--shots DIR` also writes the pictures for the documentation.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';
import { Mock, serve } from './mock.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PHONE = { width: 360, height: 740 };
const DESK = { width: 1280, height: 800 };
const PLACE = { latitude: 53.3562, longitude: -6.4526 };
const at = process.argv.indexOf('--shots');
const shots = at > 0 ? process.argv[at + 1] : null;

const mock = new Mock();
const server = await serve(mock);
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-background-networking', '--disable-component-update', '--no-first-run'],
});
const problems = [];

async function open(viewport, colorScheme = 'light') {
  const context = await browser.newContext({
    viewport,
    colorScheme,
    geolocation: PLACE,
    permissions: ['geolocation'],
    reducedMotion: 'reduce',
  });
  context.setDefaultTimeout(120_000);
  const page = await context.newPage();
  page.on('pageerror', (error) => problems.push(`${page.url()}: ${error.message}`));
  await page.goto(server.url);
  return { context, page };
}

async function login(page, user) {
  await page.getByLabel('User name').fill(user);
  await page.getByLabel('Password').fill('demo');
  await page.getByRole('button', { name: 'Log in' }).click();
  await page.locator('.shell').waitFor();
}

/** As a link in the page would, without loading it again. */
async function go(page, path) {
  await page.evaluate((to) => {
    history.pushState(null, '', to);
    dispatchEvent(new PopStateEvent('popstate'));
  }, path);
}

async function accessible(page, name) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() =>
    globalThis.axe.run(document, {
      runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
    }),
  );
  // Where meters are neighbours their marks are too; the list beside the map has the same ones (WCAG 2.5.8).
  const isMark = (node) => node.target.some((target) => /\.(cluster|point)\b/.test(String(target)));
  for (const violation of violations) {
    if (violation.id === 'target-size') violation.nodes = violation.nodes.filter((node) => !isMark(node));
  }
  const found = violations
    .filter(({ nodes }) => nodes.length > 0)
    .map(
      ({ id, nodes }) =>
        `${name}: ${id}: ${nodes
          .map((node) => node.target.join(' '))
          .slice(0, 3)
          .join(', ')}`,
    );
  problems.push(...found);
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  if (width > page.viewportSize().width) problems.push(`${name}: ${width} px wide`);
}

async function shot(page, name) {
  if (shots) await page.screenshot({ path: join(shots, `${name}.png`) });
}

async function read(page, value, button = 'Save reading') {
  await page.locator('#value').fill(String(value));
  await page.getByRole('button', { name: button, exact: true }).click();
}

const pendingIs = (page, count) =>
  count === 0
    ? page.getByText('Everything is sent').waitFor()
    : page.locator('[data-testid=pending-count]', { hasText: new RegExp(`^${count}$`) }).waitFor();

async function installable() {
  const { context, page } = await open(PHONE);
  await page.locator('[data-testid=login]').waitFor();
  await accessible(page, 'login');
  await shot(page, 'login');
  const manifest = await page.evaluate(async () => {
    const { href } = document.querySelector('link[rel=manifest]');
    const found = await (await fetch(href)).json();
    const sizes = await Promise.all(
      found.icons.map(async ({ src }) => {
        const image = await createImageBitmap(await (await fetch(src)).blob()).catch(() => null);
        return image?.width ?? 0;
      }),
    );
    return { ...found, sizes };
  });
  assert.equal(manifest.display, 'standalone');
  assert.ok(manifest.name && manifest.short_name && manifest.start_url);
  assert.ok(manifest.sizes.includes(192) && manifest.sizes.includes(512), 'icons of 192 and 512 pixels');
  assert.ok(manifest.icons.some(({ purpose }) => purpose === 'maskable'));
  await page.evaluate(() => navigator.serviceWorker.ready);
  const session = await context.newCDPSession(page);
  const { installabilityErrors } = await session.send('Page.getInstallabilityErrors');
  const hindrances = installabilityErrors.filter(({ errorId }) => errorId !== 'in-incognito');
  assert.deepEqual(hindrances, [], 'Chromium would offer to install it');
  await context.close();
}

async function readersDay() {
  const { context, page } = await open(PHONE);
  await login(page, 'rita');
  await page.locator('[data-testid=map][data-ready=true]').waitFor();
  await page.locator('[data-testid=cluster]').first().waitFor();
  await page.getByText('3,000 meters').waitFor();
  await accessible(page, 'map');
  await shot(page, 'map');
  await page.getByRole('navigation').getByRole('link', { name: 'Lists' }).click();
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'H1', 'the heading has the focus');
  await accessible(page, 'lists');
  await shot(page, 'lists');
  await page.getByRole('link', { name: /Old town/ }).click();
  await page.getByText('9 of 40 meters done').waitFor();
  await accessible(page, 'list');
  await page.locator('[data-testid=tasks] a').first().click();

  // An implausible value is asked about.
  await read(page, 99_999);
  await page.getByRole('dialog').getByText('Higher than expected').waitFor();
  await accessible(page, 'dialog');
  await page.getByRole('button', { name: 'Correct it' }).click();
  await accessible(page, 'meter');
  await shot(page, 'meter');
  const id = () => new URL(page.url()).pathname.split('/').at(-1);
  const plausible = () => mock.meters.get(id()).expected.low + 3;
  const taken = new Map();
  const take = async (button) => {
    const meter = id();
    taken.set(meter, plausible());
    await read(page, plausible(), button);
    await page.waitForURL((url) => !url.pathname.endsWith(`/${meter}`));
  };
  await take();

  // Offline: two by hand and one with a photo; the app is even opened again.
  await context.setOffline(true);
  await take();
  await take();
  const picture = readFileSync(new URL('../../public/icons/icon-512.png', import.meta.url));
  await page
    .locator('[data-testid=photo]')
    .setInputFiles({ name: 'meter.png', mimeType: 'image/png', buffer: picture });
  await page.getByRole('img', { name: 'The meter' }).waitFor();
  await take('Save reading and photo');
  await page.reload();
  await page.locator('.shell').waitFor();
  await go(page, '/pending');
  await page.getByText('to send').first().waitFor();
  const waiting = Number(await page.locator('[data-testid=pending-count]').textContent());
  assert.ok(waiting >= 4, `${waiting} wait: three readings, a photo, perhaps positions`);
  await accessible(page, 'pending');
  await shot(page, 'pending');
  await context.setOffline(false);
  await pendingIs(page, 0);
  for (const [meter, value] of taken) {
    const stored = [...mock.readings.values()].filter((one) => one.meter === meter && one.reader === 'rita');
    assert.deepEqual(
      stored.map((one) => one.value),
      [value],
      `${meter} is stored once`,
    );
  }
  assert.equal(mock.photos.size, 1);
  assert.ok([...mock.photos.values()][0].length < 400_000, 'the photo was made small');
  await context.close();
}

async function conflict() {
  const { context, page } = await open(PHONE, 'dark');
  await login(page, 'rita');
  const [meter] = [...mock.lists.get('L1').tasks].find(([, task]) => task.state === 'open');
  await go(page, '/lists/L1');
  await page.locator('[data-testid=tasks]').waitFor();
  const other = mock.meters.get(meter).expected.low + 9;
  mock.store({
    id: crypto.randomUUID(),
    meter,
    value: other,
    unit: 'm3',
    method: 'manual',
    at: new Date().toISOString(),
    work_list: 'L1',
    device: 'van-1',
    reader: 'otto',
  });
  await go(page, `/meters/${meter}`);
  await read(page, mock.meters.get(meter).expected.low + 1);
  await go(page, '/pending');
  await page.locator('[data-testid=conflict]').waitFor();
  await page.getByRole('button', { name: 'Compare' }).click();
  await page.getByText('otto', { exact: true }).waitFor();
  await accessible(page, 'conflict');
  await shot(page, 'conflict');
  await page.getByRole('button', { name: 'Keep this one' }).first().click();
  await page.locator('[data-testid=conflict]').waitFor({ state: 'detached' });
  for (const path of ['/drive', '/walk', '/more', '/map']) {
    await go(page, path);
    await page.waitForTimeout(300);
    await accessible(page, `dark ${path}`);
  }
  await context.close();
}

async function office(viewport, colorScheme) {
  const { context, page } = await open(viewport, colorScheme);
  await login(page, 'olga');
  const size = `${viewport.width} ${colorScheme}`;
  for (const [path, ready, name] of [
    ['/office', '[data-testid=cluster]', 'overview'],
    ['/office/lists', '[data-testid=office-lists]', 'assign'],
    ['/office/readings', '[data-testid=readings]', 'readings'],
    ['/office/missed', '[data-testid=missed]', 'missed'],
    ['/office/leaks', '[data-testid=leak_suspected]', 'leaks'],
    ['/office/devices', '[data-testid=devices] li', 'devices'],
    ['/meters/m4', '.chart canvas', 'consumption'],
    ['/settings', 'text=Appearance', 'settings'],
  ]) {
    await go(page, path);
    await page.locator(ready).first().waitFor();
    await accessible(page, `${path} ${size}`);
    if (viewport === DESK && colorScheme === 'light') await shot(page, `office-${name}`);
  }
  await go(page, '/office/lists');
  await page.locator('[data-testid=new-list]').click();
  await page.getByLabel('Name').fill(`Mill Lane ${size}`);
  await page.getByLabel('Meters whose street or number has').fill('mill lane');
  await accessible(page, `new list ${size}`);
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('link', { name: `Mill Lane ${size}` }).waitFor();
  await context.close();
}

async function homes(viewport, colorScheme) {
  const { context, page } = await open(viewport, colorScheme);
  await login(page, 'hanna');
  const size = `${viewport.width} ${colorScheme}`;
  const village = mock.village;
  await page.locator('[data-testid=home]').first().getByText('Forge Hill 2').first().waitFor();
  await page.locator('[data-testid=map][data-ready=true]').waitFor();
  await accessible(page, `homes ${size}`);
  await shot(page, `homes-${viewport.width}`);
  for (const [path, ready, name] of [
    ['/homes/home-03', '[data-testid=chart][data-ready=true]', 'home'],
    ['/alerts', '[data-testid=alert]', 'alerts'],
    ['/sensors', '[data-testid=sensors]', 'sensors'],
    ['/rules', '[data-testid=rules] li', 'rules'],
    ['/more', 'text=Appearance', 'more'],
  ]) {
    await go(page, path);
    await page.locator(ready).first().waitFor();
    await accessible(page, `${name} ${size}`);
    if (colorScheme === 'light') await shot(page, `homes-${name}`);
  }
  await go(page, '/homes/home-03');
  await page.locator('[data-testid=curve-note][data-gaps="1"]').waitFor();
  await page.getByText('Values as a table').click();
  await page.getByText('no reading').first().waitFor();
  await accessible(page, `table ${size}`);

  await go(page, '/alerts');
  if (village.alerts[0].state === 'active') {
    await page.getByRole('button', { name: /^Acknowledge/ }).click();
    await page.getByLabel('What is done about it').fill('Fan ordered');
    await accessible(page, `acknowledge ${size}`);
    await page.getByRole('dialog').getByRole('button', { name: 'Acknowledge', exact: true }).click();
    await page.getByText('“Fan ordered”').waitFor();
    assert.equal(village.alerts[0].acknowledged_by, 'hanna');
  }
  await go(page, '/sensors');
  await page.getByRole('button', { name: /spare-1/ }).click();
  await page.getByLabel('Home').selectOption('Well Lane 2');
  await page.getByLabel('Room').fill('attic');
  await accessible(page, `assign ${size}`);
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  assert.equal(village.sensors.at(-1).home, 'home-05');

  await go(page, '/rules');
  await page.locator('[data-testid=new-rule]').click();
  await page.getByLabel('Name').fill(`Damp ${size}`);
  await page.getByLabel('What is measured').selectOption('humidity');
  await page.getByLabel('Above, %').fill('70');
  await page.getByLabel('For at least, minutes').fill('120');
  await accessible(page, `new rule ${size}`);
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('Humidity above 70 % for 2 h').first().waitFor();
  assert.equal(village.rules.at(-1).for_s, 7200);
  await context.close();
}

try {
  await installable();
  await readersDay();
  await conflict();
  await office(DESK, 'light');
  await office(PHONE, 'dark');
  await homes(DESK, 'light');
  await homes(PHONE, 'dark');
  assert.deepEqual(problems, []);
  console.log('browser test passed: installable, offline, conflict, office, homes, accessibility, 360 px');
} finally {
  await browser.close();
  server.close();
}
process.exit(0);
