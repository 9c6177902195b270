import { describe, expect, test } from 'vitest';
import { ApiError, problemOf } from '../../src/data/api';
import { placeProblem, trimmed, validate, type Rules } from '../../src/lib/fields';

type Names = 'name' | 'every' | 'topic' | 'lat' | 'url' | 'secret';

const FIELDS: Rules<Names>[] = [
  { name: 'name', required: 'Enter a name.' },
  { name: 'every', kind: 'number', min: 1, max: 2_592_000, api: 'expected_every_s' },
  { name: 'topic', kind: 'code', required: true },
  { name: 'lat', kind: 'number', api: 'place.lat', check: (text) => (text === '13' ? 'Not there.' : null) },
  { name: 'url', kind: 'url' },
  { name: 'secret', kind: 'password', minLength: 8 },
];
const GOOD = { name: 'n', every: '', topic: 't', lat: '', url: '', secret: '' };
const faults = (wrong: object, isNoNumber?: (name: Names) => boolean) =>
  validate(FIELDS, { ...GOOD, ...wrong }, isNoNumber);

describe('what is typed', () => {
  test('may be left out where it is not required', () => {
    expect(faults({})).toEqual({});
  });

  test.each([
    [{ name: '' }, { name: 'Enter a name.' }],
    [{ topic: '' }, { topic: 'Fill in this field.' }],
    [{ every: 'x' }, { every: 'Enter a number.' }],
    [{ every: '0' }, { every: 'Enter at least 1.' }],
    [{ lat: '13' }, { lat: 'Not there.' }],
    [{ url: 'example.com' }, { url: 'Enter a whole address, such as https://example.com/.' }],
    [{ secret: 'short' }, { secret: 'Enter at least 8 characters.' }],
  ])('is judged: %j', (wrong, expected) => {
    expect(faults(wrong)).toEqual(expected);
  });

  test('is no number though it looks empty, where the browser says so', () => {
    expect(faults({}, (name) => name === 'every')).toEqual({ every: 'Enter a number.' });
    expect(faults({}, (name) => name === 'name')).toEqual({});
  });

  test('loses spaces at its ends, but for topics and passwords', () => {
    const sent = trimmed(FIELDS, { ...GOOD, name: ' n ', topic: ' t ', secret: ' password ' });
    expect(sent).toMatchObject({ name: 'n', topic: ' t ', secret: ' password ' });
  });
});

describe('what the server refuses', () => {
  const invalid = (...errors: { field: string; detail: string }[]) =>
    placeProblem(problemOf({ detail: 'all of it', errors }, 422), FIELDS);

  test('is said at the field that it is about, by whatever name the API has for it', () => {
    expect(invalid({ field: 'expected_every_s', detail: 'expected 1 to 9' })).toEqual({
      faults: { every: 'Expected 1 to 9' },
      rest: null,
    });
    expect(invalid({ field: 'place.lat', detail: 'too far' }).faults).toEqual({ lat: 'Too far' });
    expect(invalid({ field: 'name[2]', detail: 'odd' }).faults).toEqual({ name: 'Odd' });
  });

  test('is said of the form if a part of it is about no field', () => {
    const placed = invalid({ field: 'name', detail: 'taken' }, { field: 'id', detail: 'odd' });
    expect(placed.faults).toEqual({ name: 'Taken' });
    expect(placed.rest).toContain('All of it');
    expect(placeProblem(new ApiError(0, 'No network.'), FIELDS)).toEqual({ faults: {}, rest: 'No network.' });
  });

  test('because of another change says what to do', () => {
    expect(placeProblem(new ApiError(412, 'stale'), FIELDS).rest).toMatch(/close this window/);
  });
});
