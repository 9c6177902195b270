// What the app asks of the device: storage that stays, photos that are upright, the clock's zone.

import { afterEach, describe, expect, test, vi } from 'vitest';
import './helpers';
import { login } from '../../src/data/account';
import { exchangeFields, localMinute, newExchange } from '../../src/lib/exchange';
import { validate } from '../../src/lib/fields';
import { shrink } from '../../src/lib/photo';

afterEach(() => vi.unstubAllGlobals());

test('after a login, the browser is asked to keep what is stored', async () => {
  const persist = vi.fn(() => Promise.resolve(true));
  vi.stubGlobal('navigator', { storage: { persist }, onLine: true });
  const user = { name: 'rita', display_name: 'Rita', twins: [] };
  const session = { token: 't', expires_at: '2127-01-01T00:00:00.000Z', user };
  vi.stubGlobal(
    'fetch',
    vi.fn(() => Promise.resolve(Response.json(session, { status: 201 }))),
  );
  await login('rita', 'correct horse', () => undefined);
  expect(persist).toHaveBeenCalledOnce();
});

test('a photo is turned as the camera says, and made smaller', async () => {
  const image = { width: 3000, height: 4000, close: vi.fn() };
  const decode = vi.fn(() => Promise.resolve(image));
  vi.stubGlobal('createImageBitmap', decode);
  const small = new Blob(['jpeg']);
  const canvas = {
    width: 0,
    height: 0,
    getContext: () => ({ drawImage: () => undefined }),
    toBlob: (done: (blob: Blob) => void) => done(small),
  };
  vi.stubGlobal('document', { createElement: () => canvas });
  const file = new Blob(['as the camera wrote it']);
  expect(await shrink(file, 1280)).toBe(small);
  expect(decode).toHaveBeenCalledWith(file, { imageOrientation: 'from-image' });
  expect([canvas.width, canvas.height]).toEqual([960, 1280]);
});

describe('an exchange', () => {
  const typed = { at: '2026-11-03T13:00', final: '1182,4', first: '0', number: 'B-2', note: '' };
  const faults = (wrong: object) => validate(exchangeFields('m³'), { ...typed, ...wrong });

  test('is sent in numbers, and at the time of this zone', () => {
    const body = {
      id: 'x',
      at: new Date(2026, 10, 3, 13).toISOString(),
      final: 1182.4,
      first: 0,
      new_serial: 'B-2',
      note: null,
    };
    expect(faults({})).toEqual({});
    expect(newExchange(typed, 'x')).toEqual(body);
    expect(localMinute(new Date(2026, 10, 3, 13))).toBe(typed.at);
  });

  test.each([{ at: '' }, { final: '' }, { first: '-1' }, { final: '1e3' }])(
    'with %j is not sent, and says so at that field',
    (wrong) => {
      expect(Object.keys(faults(wrong))).toEqual(Object.keys(wrong));
    },
  );
});
