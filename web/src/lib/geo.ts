// Places on the earth near each other. Pure; good to a metre over the width of a town.

import type { Meter, Place } from '../types';

const METRES_PER_DEGREE = 111_195;

export function metresBetween(a: Place, b: Place): number {
  const north = (b.lat - a.lat) * METRES_PER_DEGREE;
  const east = (b.lon - a.lon) * METRES_PER_DEGREE * Math.cos((a.lat * Math.PI) / 180);
  return Math.hypot(north, east);
}

export interface Street {
  name: string;
  line: [number, number][];
}

/** `Mill Lane 12b` without its house number. */
export function streetName(address: string): string {
  return address.replace(/[\s,]+\d+\s*\w?$/, '').trim();
}

/**
 * Streets as the meters along them tell: without map tiles this is what a reader recognises the place
 * by. Meters of a street are ordered along its longer direction; where two neighbours are far apart
 * the line is broken.
 */
export function streetsOf(meters: Iterable<Meter>, gapM = 250): Street[] {
  const byName = new Map<string, Place[]>();
  for (const { street, place } of meters) {
    if (!street || !place) continue;
    const name = streetName(street);
    const places = byName.get(name);
    if (places) places.push(place);
    else byName.set(name, [place]);
  }
  const streets: Street[] = [];
  for (const [name, places] of byName) {
    if (places.length < 3) continue;
    for (const part of split(along(places), gapM)) {
      if (part.length >= 3) streets.push({ name, line: straight(smooth(part)) });
    }
  }
  return streets;
}

function along(places: Place[]): Place[] {
  const origin = places[0] as Place;
  const scale = Math.cos((origin.lat * Math.PI) / 180);
  const points = places.map((place) => ({ x: (place.lon - origin.lon) * scale, y: place.lat - origin.lat }));
  const mean = (key: 'x' | 'y') => points.reduce((sum, point) => sum + point[key], 0) / points.length;
  const [meanX, meanY] = [mean('x'), mean('y')];
  let [xx, xy, yy] = [0, 0, 0];
  for (const { x, y } of points) {
    xx += (x - meanX) ** 2;
    xy += (x - meanX) * (y - meanY);
    yy += (y - meanY) ** 2;
  }
  const angle = Math.atan2(2 * xy, xx - yy) / 2;
  const key = (place: Place) =>
    (place.lon - origin.lon) * scale * Math.cos(angle) + (place.lat - origin.lat) * Math.sin(angle);
  return [...places].sort((a, b) => key(a) - key(b));
}

function split(places: Place[], gapM: number): Place[][] {
  const parts: Place[][] = [];
  let part: Place[] = [];
  for (const place of places) {
    const before = part.at(-1);
    if (before && metresBetween(before, place) > gapM) {
      parts.push(part);
      part = [];
    }
    part.push(place);
  }
  parts.push(part);
  return parts;
}

/** Houses lie on both sides: the middle of three to five neighbours is about the street. */
function smooth(places: Place[]): [number, number][] {
  return places.map((_, at) => {
    const near = places.slice(Math.max(0, at - 2), at + 3);
    const mean = (key: 'lat' | 'lon') => near.reduce((sum, place) => sum + place[key], 0) / near.length;
    return [mean('lat'), mean('lon')];
  });
}

/** Houses lie further from the middle of their street than that only where it bends. */
const BEND_M = 14;

/** The line with as few corners as it takes to stay that near (Ramer, Douglas and Peucker). */
function straight(line: [number, number][]): [number, number][] {
  const [first, last] = [line[0], line.at(-1)];
  if (!first || !last || line.length < 3) return line;
  let [far, farM] = [0, 0];
  for (const [at, point] of line.entries()) {
    const metres = metresFromLine(point, first, last);
    if (metres > farM) [far, farM] = [at, metres];
  }
  if (farM <= BEND_M) return [first, last];
  return [...straight(line.slice(0, far + 1)).slice(0, -1), ...straight(line.slice(far))];
}

type LatLon = [number, number];

function metresFromLine([lat, lon]: LatLon, [lat0, lon0]: LatLon, [lat1, lon1]: LatLon): number {
  const scale = Math.cos((lat0 * Math.PI) / 180);
  const [x, y] = [(lon - lon0) * scale, lat - lat0];
  const [dx, dy] = [(lon1 - lon0) * scale, lat1 - lat0];
  const along = Math.max(0, Math.min(1, (x * dx + y * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - along * dx, y - along * dy) * METRES_PER_DEGREE;
}
