// Builds the app into dist: pages and code by Vite, then the service worker with the list of what it
// keeps, then compressed forms of everything, then the check that the first load stays within budget.

import { createHash } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';
import { build } from 'vite';
import { checkSize } from './size.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');
const COMPRESSIBLE = /\.(html|js|css|svg|webmanifest|json|txt)$/;

// The folder itself stays: the program's build watches it.
mkdirSync(dist, { recursive: true });
for (const name of readdirSync(dist)) rmSync(join(dist, name), { recursive: true });
await build({ root, logLevel: 'warn' });

const files = readdirSync(dist, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => join(entry.parentPath ?? entry.path, entry.name));
const paths = files.map((file) => file.slice(dist.length).replaceAll('\\', '/')).sort();
const digest = createHash('sha256');
for (const path of paths) digest.update(path).update(readFileSync(join(dist, path)));

await build({
  root,
  configFile: false,
  logLevel: 'warn',
  publicDir: false,
  define: {
    __PRECACHE__: JSON.stringify(paths),
    __BUILD__: JSON.stringify(digest.digest('hex').slice(0, 12)),
  },
  build: {
    target: 'es2022',
    outDir: 'dist',
    emptyOutDir: false,
    reportCompressedSize: false,
    lib: { entry: 'src/sw.ts', formats: ['iife'], name: 'worker', fileName: () => 'sw.js' },
  },
});

for (const path of [...paths, '/sw.js']) {
  if (!COMPRESSIBLE.test(path)) continue;
  const bytes = readFileSync(join(dist, path));
  const quality = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY };
  writeFileSync(join(dist, `${path}.br`), brotliCompressSync(bytes, { params: quality }));
  writeFileSync(join(dist, `${path}.gz`), gzipSync(bytes, { level: 9 }));
}

process.exitCode = checkSize(dist) ? 0 : 1;
