// Draws the PNG icons from the SVG one with a Chromium of the machine. Run by hand when the icon changes.

import { readFileSync, writeFileSync } from 'node:fs';
import { chromium } from 'playwright-core';

const svg = readFileSync(new URL('../public/icons/icon.svg', import.meta.url), 'utf8');
const bleeding = svg
  .replace('rx="15" ', '')
  .replace('viewBox="0 0 64 64"', 'viewBox="-10 -10 84 84" style="background:#0a4f6b"');
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
for (const [name, size, source] of [
  ['icon-192', 192, svg],
  ['icon-512', 512, svg],
  ['icon-maskable-512', 512, bleeding],
]) {
  const page = await browser.newPage({ viewport: { width: size, height: size } });
  await page.setContent(
    `<style>body{margin:0}svg{width:${size}px;height:${size}px;display:block}</style>${source}`,
  );
  writeFileSync(
    new URL(`../public/icons/${name}.png`, import.meta.url),
    await page.screenshot({ omitBackground: true }),
  );
}
await browser.close();
