// Opens a page in Chromium, and prints its text once it has these words.
//
// Usage: node show.mjs URL WORDS

import { launch } from '../../../browser/chromium.mjs';

const [url, words] = process.argv.slice(2);
const browser = await launch();
const page = await browser.newPage();
page.on('pageerror', (error) => console.error(error));
page.on('console', (message) => console.error(message.text()));
for (;;) {
  // Its server may only just have been started.
  const answer = await page.goto(url).catch(() => undefined);
  if (answer?.ok()) break;
}
await page.getByText(words).waitFor();
console.log((await page.innerText('body')).trim());
await browser.close();
