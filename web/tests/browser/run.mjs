// The app in Debian's Chromium against a stand-in for the API: a reader's day with a stretch offline, a
// conflict, the office's screens, a page on paper, another language; every screen in both themes at a desk and on a
// phone, with data and without, under axe-core's rules. `--shots DIR` also writes the pictures for the documentation.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
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

async function open(viewport, colorScheme = 'light', locale = 'en-GB') {
  const context = await browser.newContext({
    viewport,
    colorScheme,
    locale,
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
  await shot(page, 'app-map');
  await page.getByRole('navigation').getByRole('link', { name: 'Lists' }).click();
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'H1', 'the heading has the focus');
  await accessible(page, 'lists');
  await shot(page, 'app-lists');
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
  await shot(page, 'app-meter');
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
  await shot(page, 'app-pending');
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
    id: randomUUID(),
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
  await shot(page, 'app-conflict');
  // The office decides: the reader is not offered what the server would refuse.
  assert.equal(await page.getByRole('button', { name: 'Keep this one' }).count(), 0);
  await page.getByRole('button', { name: 'Leave it to the office' }).click();
  await page.locator('[data-testid=conflict]').waitFor({ state: 'detached' });
  await context.close();
}

/** What readers met on their first day: nothing is recorded unasked, nothing alarms that is no alarm, and a chart shows
 * what there is. */
async function firstDay() {
  const { context, page } = await open(PHONE);
  await login(page, 'rita');
  await go(page, '/more');
  const route = page.getByLabel(/Record my route/);
  await route.waitFor();
  assert.equal(await route.isChecked(), false, 'a route is recorded once that is switched on');

  // Meter 7 counts warm water.
  assert.equal(mock.meters.get('m7').medium, 'warm_water');
  await go(page, '/meters/m7');
  const sign = page.locator('.medium.warm_water').first();
  await sign.waitFor();
  const ofAlarms = await sign.evaluate((element) => {
    const probe = document.createElement('span');
    element.parentElement.append(probe);
    const colors = ['--bad', '--bad-soft', '--warn', '--warn-soft'].map((name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    });
    probe.remove();
    const { color, backgroundColor } = getComputedStyle(element);
    return [color, backgroundColor].filter((one) => colors.includes(one));
  });
  assert.deepEqual(ofAlarms, [], 'no colour of alarms');
  await context.close();
  await consumption();
}

async function consumption() {
  const { context, page } = await open(PHONE);
  await login(page, 'olga');
  await go(page, '/meters/m4');
  const card = page.locator('[data-testid=consumption]');
  await card.locator('.chart[data-from="0"]').waitFor();
  const covered = await card.locator('h2').evaluate((heading) => {
    heading.scrollIntoView({ block: 'center' });
    const range = document.createRange();
    range.selectNodeContents(heading);
    const { left, right, top, bottom } = range.getBoundingClientRect();
    const places = [left + 2, (left + right) / 2, right - 2];
    return places.filter((x) => document.elementFromPoint(x, (top + bottom) / 2) !== heading);
  });
  assert.deepEqual(covered, [], 'the heading is seen from its beginning to its end');

  // Readings once a month tell nothing of days: months come by themselves.
  const monthly = /\/consumption\?.*step=day/;
  await page.route(monthly, async (route) => {
    const answer = await (await route.fetch()).json();
    const points = answer.points.map((point) => ({ ...point, consumption: null }));
    await route.fulfill({ json: { points } });
  });
  await go(page, '/meters/m5');
  await card.getByLabel('Months').and(page.locator(':checked')).waitFor();
  await card.locator('.chart canvas').waitFor();
  await context.close();
}

async function decide() {
  const { context, page } = await open(DESK);
  await login(page, 'olga');
  await go(page, '/office/readings');
  const rows = page.locator('[data-testid=readings] tbody tr');
  await rows.first().waitFor();
  const shown = await rows.count();
  assert.equal(shown, 1000, 'no more than that at once');
  // The list has more than a page of old readings: today's come first, and a conflict is found among all.
  await rows.first().getByText('conflict').waitFor();
  await page.getByLabel('Only conflicts').check();
  await page.waitForFunction(() => document.querySelectorAll('[data-testid=readings] tbody tr').length === 2);
  await page.getByRole('button', { name: 'Keep this one' }).first().click();
  await page.getByText('No matching readings').waitFor();
  await page.getByLabel('Only conflicts').uncheck();
  await rows.first().waitFor();

  // A typo is put right, and says who, when, why and what was before.
  const before = await rows.nth(3).locator('[data-label=Value]').textContent();
  await rows.nth(3).getByRole('button', { name: 'Correct' }).click();
  await page.getByLabel('Value, m³').fill('4321');
  await page.getByRole('dialog').getByRole('button', { name: 'Correct', exact: true }).click();
  await page.getByText('Enter a reason').waitFor();
  await accessible(page, 'correct');
  await page.getByLabel('Reason').fill('the photo shows it');
  await page.getByRole('dialog').getByRole('button', { name: 'Correct', exact: true }).click();
  await rows.nth(3).getByText(`Was ${before}. Corrected by olga`).waitFor();
  await rows.nth(3).getByText('the photo shows it').waitFor();
  assert.equal(await rows.nth(3).locator('[data-label=Value]').textContent(), '4,321 m³');
  await rows.nth(3).getByRole('link').click();
  const history = page.locator('[data-testid=history]');
  await history.getByText('4,321 m³').waitFor();
  await history.getByRole('button', { name: 'Correct' }).first().click();
  await page.getByLabel('Reason').fill('wrong meter');
  await page.getByRole('button', { name: 'Withdraw' }).click();
  await history.getByText('Withdrawn by olga').waitFor();
  await accessible(page, 'history');

  // Another meter is there: the server says what cannot be, and the rest is in the history.
  await history.getByRole('button', { name: 'Meter exchanged' }).click();
  await page.getByLabel('Final value of the old meter').fill('1');
  await page.getByLabel('Number of the new meter').fill('B-2');
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.getByRole('alert').getByText('correct that reading first').waitFor();
  await accessible(page, 'exchange');
  const charted = page.waitForResponse(/\/consumption\?/);
  await page.getByLabel('Final value of the old meter').fill('99000,5');
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  const exchanged = page.locator('[data-testid=exchanges] tbody tr');
  await exchanged.getByText('99,000.5').waitFor();
  assert.equal(await exchanged.locator('[data-label="New number"]').textContent(), 'B-2');
  await charted;
  await page.locator('.about').getByText('B-2').waitFor();
  await exchanged.getByRole('button', { name: 'Take back' }).click();
  await exchanged.getByText('Taken back by olga').waitFor();
  assert.equal(await exchanged.getByRole('button').count(), 0, 'it is taken back once');

  // Who is not there: said once, by the field's name. An answer that arrives while somebody types leaves the
  // field alone.
  let people;
  const asked = new Promise((resolve) => {
    void page.route('**/user', (route) => resolve((people = route)));
  });
  await go(page, '/office/lists');
  await page.getByLabel('Reader of Old town, by hand').fill('nobody-here');
  await asked;
  await people.fulfill({ json: { items: [{ name: 'tom', display_name: null, role: 'reader' }] } });
  await page.locator('#people option[value=tom]').waitFor({ state: 'attached' });
  await page.getByLabel('Reader of Old town, by hand').press('Enter');
  await page.unroute('**/user');
  // What the notice said of the withdrawal before may still stand there.
  await page.locator('.notice', { hasText: /^Reader: there is no such user in this twin$/ }).waitFor();
  await page.waitForFunction(
    () => document.querySelector('[aria-label^="Reader of Old town"]').value === 'rita',
  );

  // Number 12 is number 12.
  await go(page, '/map');
  await page.locator('[data-testid=search]').fill('mill lane 12');
  const first = page.locator('[data-testid=found] strong');
  await first.first().waitFor();
  const streets = await first.allTextContents();
  assert.equal(streets[0], 'Mill Lane 12');
  assert.ok(
    streets.every((street) => street.endsWith(' 12')),
    streets.join(', '),
  );

  await onPaper(page);
  await context.close();
}

/** A printed list is rows and nothing else. */
async function onPaper(page) {
  await go(page, '/office/readings');
  await page.locator('[data-testid=readings]').waitFor();
  await page.emulateMedia({ media: 'print' });
  for (const gone of ['.top', 'nav.tabs', 'nav.side', '.filters', '.page-actions'])
    assert.equal(await page.locator(gone).isVisible(), false, `${gone} on paper`);
  await page.emulateMedia({ media: null });
  const pdf = await page.pdf({ format: 'A4' });
  const pages = pdf.toString('latin1').match(/\/Type\s*\/Page\b/g).length;
  assert.ok(pages > 10 && pages < 45, `${pages} pages for 1000 readings`);
}

/** Numbers and dates are in the notation of the browser's language, all of them. */
async function german() {
  const { context, page } = await open(DESK, 'light', 'de-DE');
  await login(page, 'olga');
  await page.locator('[data-testid=overview]').getByText('3.000').waitFor();
  await page
    .getByText(/of 3\.\d{3}|of 500/)
    .first()
    .waitFor();
  await go(page, '/office/readings');
  await page.locator('[data-testid=readings]').getByText('4.321 m³').waitFor();
  const dates = await page.locator('[data-testid=readings] [data-label=Read]').allTextContents();
  const isGerman = (text) => /^\d{1,2}\. [A-Z][a-zä]+\.? \d{4}, \d{2}:\d{2}$/.test(text);
  assert.deepEqual(dates.filter((text) => !isGerman(text)).slice(0, 3), []);
  await context.close();
}

async function office(viewport, colorScheme) {
  const { context, page } = await open(viewport, colorScheme);
  await login(page, 'olga');
  const size = `${viewport.width} ${colorScheme}`;
  await go(page, '/office/lists');
  await page.locator('[data-testid=new-list]').click();
  await page.getByLabel('Name').fill(`Mill Lane ${size}`);
  await page.getByLabel('Meters whose street or number contains').fill('mill lane');
  await accessible(page, `new list ${size}`);
  await page.getByRole('button', { name: 'Create' }).click();
  await page.getByRole('link', { name: `Mill Lane ${size}` }).waitFor();
  await context.close();
}

/** What every form and list does, at one of each: nothing typed is lost, and what is wrong is said where it is. */
async function formsAndLists(viewport) {
  const { context, page } = await open(viewport);
  await login(page, 'olga');
  const size = viewport.width;
  const focused = () => page.evaluate(() => document.activeElement.id);

  // What is missing is said at its field, which gets the focus; nothing is sent.
  await go(page, '/office/lists');
  const begun = page.getByTestId('new-list');
  await begun.click();
  const form = page.getByRole('form', { name: 'New work list' });
  const create = form.getByRole('button', { name: 'Create' });
  const name = form.getByLabel('Name');
  let sent = 0;
  page.on('request', (request) => (sent += request.method() === 'POST' ? 1 : 0));
  await create.click();
  await form.getByRole('alert').getByText('Fill in this field.').waitFor();
  assert.equal(await focused(), 'list-name');
  assert.equal(await name.getAttribute('aria-invalid'), 'true');
  assert.equal(await name.getAttribute('aria-describedby'), 'list-name-fault');
  assert.equal(await form.locator('#list-name-fault').textContent(), 'Fill in this field.');
  await accessible(page, `wrong field ${size}`);
  await shot(page, `form-field-${size}`);
  await form.getByLabel('Meters whose street or number contains').fill('no such street');
  await name.fill('Typed once');
  assert.equal(await form.getByRole('alert').count(), 0, 'what is put right is no longer wrong');
  await create.click();
  await form.getByText('No meter is like this').waitFor();
  assert.equal(sent, 0);
  await form.getByLabel('Meters whose street or number contains').fill('mill lane');

  // The server's answer: at the field it is about, else above the buttons.
  const refusals = [
    {
      detail: 'assignee: there is no such user',
      errors: [{ field: 'assignee', detail: 'there is no such user' }],
    },
    { detail: 'there are too many work lists: close some' },
  ];
  let held;
  await page.route('**/work_list', async (route) => {
    if (route.request().method() !== 'POST') return route.fallback();
    const problem = refusals.shift();
    if (problem)
      return route.fulfill({ status: 422, contentType: 'application/problem+json', json: problem });
    held = route;
    return undefined;
  });
  await form.getByLabel('Reader').fill('nobody');
  await create.click();
  await form.locator('#list-assignee-fault').getByText('There is no such user').waitFor();
  await page.waitForFunction(() => document.activeElement.id === 'list-assignee');
  await form.getByLabel('Reader').fill('rita');
  await create.click();
  await form.getByRole('alert').getByText('there are too many work lists: close some').waitFor();
  await accessible(page, `refused form ${size}`);
  await shot(page, `form-refused-${size}`);
  assert.deepEqual(
    [await name.inputValue(), await form.getByLabel('Reader').inputValue()],
    ['Typed once', 'rita'],
  );

  // Two clicks and Enter are one request.
  sent = 0;
  await create.evaluate((button) => (button.click(), button.click()));
  await form.getByRole('button', { name: 'Sending …' }).waitFor();
  await name.press('Enter');
  assert.equal(await form.getAttribute('aria-busy'), 'true');
  assert.equal(sent, 1, 'it is sent once');
  await held.continue();
  await page.getByRole('link', { name: 'Typed once' }).first().waitFor();
  await form.waitFor({ state: 'detached' });
  await page.unroute('**/work_list');
  assert.equal([...mock.lists.values()].filter((list) => list.name === 'Typed once').length, 1);
  mock.lists.delete([...mock.lists.values()].find((list) => list.name === 'Typed once').id);

  // A dialog gives the focus back to what opened it.
  await go(page, '/meters/m4');
  const exchanged = page.getByRole('button', { name: 'Meter exchanged' });
  await exchanged.click();
  const dialog = page.getByRole('dialog');
  await dialog.getByRole('button', { name: 'Save' }).click();
  await dialog.getByText('Enter both registers.').waitFor();
  assert.equal(await focused(), 'exchange-final');
  await accessible(page, `wrong exchange ${size}`);
  await shot(page, `form-dialog-${size}`);
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await dialog.waitFor({ state: 'detached' });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Meter exchanged');

  // A list says that it is being fetched, why it cannot be, and fetches again when it is told to.
  let answer;
  const answered = {
    status: 503,
    contentType: 'application/problem+json',
    json: { detail: 'The disk is full.' },
  };
  await page.route('**/report/missed*', (route) => (answer = route));
  await go(page, '/office/missed');
  await page.getByRole('status').getByText('Loading …').waitFor();
  await answer.fulfill(answered);
  await page.getByRole('status').getByText('The disk is full.').waitFor();
  assert.equal(await page.getByText('Loading …').count(), 0);
  assert.equal(await page.getByText('Nothing was missed').count(), 0, 'what is unknown is not nothing');
  await accessible(page, `failed list ${size}`);
  await shot(page, `list-failed-${size}`);
  await page.unroute('**/report/missed*');
  await page.getByRole('button', { name: 'Try again' }).click();
  await page.getByTestId('missed').waitFor();
  assert.equal(await page.getByText('The disk is full.').count(), 0);

  // More is a click away: of what is here, and of what the server has.
  await go(page, '/lists/L2');
  const tasks = page.locator('[data-testid=tasks] li');
  await page.getByRole('button', { name: 'Show 100 more' }).click();
  await page.waitForFunction(() => document.querySelectorAll('[data-testid=tasks] li').length === 200);
  assert.equal(await tasks.count(), 200);
  const often = { meter: 'm2100', value: 1, unit: 'm3', method: 'manual', reader: 'otto', work_list: null };
  for (let day = 0; day < 30; day += 1)
    mock.store({ ...often, id: `often-${day}`, at: new Date(Date.UTC(2026, 1, 1 + day)).toISOString() });
  await go(page, '/meters/m2100');
  const known = page.locator('[data-testid=history] tbody tr');
  await known.nth(19).waitFor();
  assert.equal(await known.count(), 20);
  await page.getByRole('button', { name: 'Show more' }).click();
  await known.nth(29).waitFor();
  assert.equal(await known.count(), 30);
  await go(page, '/office/missed');
  await page.getByTestId('missed').waitFor();

  // One table: the title is that of the page, and navigation says where one is.
  assert.equal(await page.title(), 'Missed meters · Fulmar');
  const where = page.locator('nav:visible [aria-current=page]');
  assert.deepEqual(await where.allTextContents(), [viewport === DESK ? 'Missed meters' : 'More']);
  await go(page, '/meters/m4');
  await page.getByTestId('history').waitFor();
  assert.deepEqual(await where.allTextContents(), ['Map']);
  await context.close();
}

/** Each screen by who sees it, with what tells that it is there and the name of its picture. */
const SCREENS = {
  rita: [
    ['/map', '[data-testid=cluster]'],
    ['/lists', '[data-testid=work-lists] li', 'app-lists'],
    ['/lists/L2', '[data-testid=tasks] li'],
    ['/meters/m4?list=L1', '[data-testid=read]'],
    ['/drive', '[data-testid=map][data-ready=true]'],
    ['/walk', '[data-testid=nearby] li'],
    ['/pending', 'text=Everything is sent'],
    ['/more', 'text=Appearance'],
  ],
  olga: [
    ['/office', '[data-testid=cluster]', 'office-overview'],
    ['/office/lists', '[data-testid=office-lists]', 'office-assign'],
    ['/office/readings?', '[data-testid=readings]', 'office-readings'],
    ['/office/missed', '[data-testid=missed]'],
    ['/office/leaks', '[data-testid=leak_suspected]'],
    ['/office/devices', '[data-testid=devices] li'],
    ['/meters/m4', '.chart canvas'],
    ['/settings', 'text=Appearance'],
  ],
  emma: [
    ['/map', '[data-testid=map][data-ready=true]'],
    ['/lists', 'text=Lists that are assigned to you appear here'],
    ['/drive', '[data-testid=map][data-ready=true]'],
    ['/walk', 'text=No radio meters here'],
    ['/pending', 'text=Everything is sent'],
    ['/office', 'text=No open work lists'],
    ['/office/lists', 'text=No work lists yet'],
    ['/office/readings', 'text=They appear here when readers'],
    ['/office/missed', 'text=Nothing was missed'],
    ['/office/leaks', 'text=No meter runs'],
    ['/office/devices', 'text=appear here when they open the app'],
    ['/nowhere', 'text=There is nothing'],
  ],
  hanna: [
    ['/', '[data-testid=map][data-ready=true]'],
    ['/homes/home-03', '[data-testid=chart][data-ready=true]'],
    ['/alerts', '[data-testid=alert]'],
    ['/sensors', '[data-testid=sensors]'],
    ['/rules', '[data-testid=rules] li'],
    ['/more', 'text=Appearance'],
  ],
  hugo: [
    ['/', 'h1'],
    ['/homes/none', 'text=There is no such home'],
    ['/alerts', 'text=No alerts'],
    ['/sensors', 'h1'],
    ['/rules', 'text=nothing raises an alert: add one'],
  ],
};

async function everyScreen(viewport, colorScheme) {
  for (const [user, screens] of Object.entries(SCREENS)) {
    const { context, page } = await open(viewport, colorScheme);
    await page.locator('[data-testid=login]').waitFor();
    if (user === 'rita') await accessible(page, `login ${viewport.width} ${colorScheme}`);
    await login(page, user);
    for (const [path, ready, name] of screens) {
      await go(page, path.replace(/\?$/, ''));
      await page.locator(ready).first().waitFor();
      await page.locator('h1').first().waitFor({ state: 'attached' });
      await accessible(page, `${user} ${path} ${viewport.width} ${colorScheme}`);
      const wide = name?.startsWith('office');
      if (name && colorScheme === 'light' && viewport === (wide ? DESK : PHONE)) await shot(page, name);
    }
    await context.close();
  }
}

async function homes(viewport, colorScheme) {
  const { context, page } = await open(viewport, colorScheme);
  await login(page, 'hanna');
  const size = `${viewport.width} ${colorScheme}`;
  const village = mock.village;
  await page.locator('[data-testid=home]').first().getByText('Forge Hill 2').first().waitFor();
  // A sensor that measures every half hour has a curve and no gaps, and the limit that is named is in the picture.
  await go(page, '/homes/home-04');
  await page.locator('[data-testid=chart][data-ready=true]').waitFor();
  await page.locator('[data-testid=curve-note][data-gaps="0"]').getByText('alert limit, 300 Bq/m³').waitFor();
  await page.waitForFunction(() => Number(document.querySelector('[data-testid=chart]').dataset.top) >= 300);
  await go(page, '/homes/home-03');
  await page.locator('[data-testid=curve-note][data-gaps="1"]').waitFor();
  await page.getByText('Values as a table').click();
  await page.getByText('no reading').first().waitFor();
  await accessible(page, `table ${size}`);

  await go(page, '/alerts');
  if (village.alerts[0].state === 'active') {
    await page.getByRole('button', { name: /^Acknowledge/ }).click();
    await page.getByLabel('Action taken').fill('Fan ordered');
    await accessible(page, `acknowledge ${size}`);
    await page.getByRole('dialog').getByRole('button', { name: 'Acknowledge', exact: true }).click();
    await page.getByText('“Fan ordered”').waitFor();
    assert.equal(village.alerts[0].acknowledged_by, 'hanna');
  }
  await go(page, '/sensors');
  await page.getByRole('button', { name: /(Assign|Edit) spare-1/ }).click();
  await page.getByLabel('Home').selectOption('Well Lane 2');
  const room = `attic ${size}`;
  await page.getByLabel('Room').fill(room);
  await accessible(page, `assign ${size}`);
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('dialog').waitFor({ state: 'detached' });
  assert.deepEqual([village.sensors.at(-1).home, village.sensors.at(-1).room], ['home-05', room]);
  const broken = { ...village.sensors.at(-1), device: 'broken-1' };
  village.sensors.push(broken);
  await page.getByRole('button', { name: 'Refresh' }).click();
  await page.getByRole('button', { name: 'Remove… broken-1' }).click();
  await page.getByRole('dialog', { name: 'Remove sensor broken-1?' }).waitFor();
  await accessible(page, `remove ${size}`);
  await page.getByRole('button', { name: 'Remove sensor' }).click();
  await page.getByRole('row', { name: /broken-1/ }).waitFor({ state: 'detached' });
  assert.ok(!village.sensors.includes(broken));

  await go(page, '/rules');
  await page.locator('[data-testid=new-rule]').click();
  await page.getByLabel('Name').fill(`Damp ${size}`);
  await page.getByLabel('What is measured').selectOption('humidity');
  await page.getByLabel('Above, %').fill('70');
  await page.getByLabel('For at least, minutes').fill('120');
  await accessible(page, `new rule ${size}`);
  await page.getByRole('button', { name: 'Save' }).click();
  // By its name: a rule like it is there from the round before.
  const rule = page.locator('[data-testid=rules] li', { hasText: `Damp ${size}` });
  await rule.getByText('Humidity above 70 % for 2 h').waitFor();
  assert.deepEqual([village.rules.at(-1).name, village.rules.at(-1).for_s], [`Damp ${size}`, 7200]);
  await context.close();
}

const started = Date.now();
const done = (what) => console.log(`${((Date.now() - started) / 1000).toFixed(0).padStart(4)} s  ${what}`);

try {
  await installable();
  await readersDay();
  await conflict();
  await firstDay();
  await decide();
  await german();
  done('installable, offline, conflict, corrected, on paper, in German');
  for (const viewport of [DESK, PHONE]) {
    for (const colorScheme of ['light', 'dark']) {
      await everyScreen(viewport, colorScheme);
      done(`every screen at ${viewport.width} px, ${colorScheme}`);
    }
  }
  await formsAndLists(DESK);
  await formsAndLists(PHONE);
  done('forms and lists');
  await office(DESK, 'light');
  await office(PHONE, 'dark');
  await homes(DESK, 'light');
  await homes(PHONE, 'dark');
  assert.deepEqual(problems, []);
  done('browser test passed');
} finally {
  await browser.close();
  server.close();
}
process.exit(0);
