// Meters as points on a map, coloured by what there is to do. Pure.

import type { Heard, Meter, Reading, WorkList } from '../types';
import type { Item } from '../data/outbox';
import type { Point } from '../ui/leaflet-map';
import { meterTitle } from './format';
import { seenTasks } from './work';

const SAID: Record<string, string> = {
  read: 'read',
  pending: 'read, to be sent',
  warn: 'no access or missed',
  bad: 'possible leak',
  heard: 'heard',
};

function point(meter: Meter, kind: string): Point[] {
  if (!meter.place) return [];
  const said = SAID[kind];
  return [
    {
      id: meter.id,
      place: meter.place,
      kind,
      label: said ? `${meterTitle(meter)}, ${said}` : meterTitle(meter),
    },
  ];
}

/** The tasks of a list. */
export function pointsOfList(list: WorkList, outbox: readonly Item[]): Point[] {
  return seenTasks(list, outbox).flatMap((task) => {
    const kind =
      task.state === 'open'
        ? 'open'
        : task.state === 'unreachable'
          ? 'warn'
          : task.pending
            ? 'pending'
            : 'read';
    return point(task.meter, kind);
  });
}

/** All meters; those in an open list stand out. */
export function pointsOfAll(
  meters: Iterable<Meter>,
  lists: readonly WorkList[],
  pending: ReadonlyMap<string, Reading>,
): Point[] {
  const byMeter = new Map<string, string>();
  for (const list of lists) {
    if (list.state !== 'open') continue;
    for (const task of list.tasks ?? [])
      byMeter.set(task.meter.id, task.state === 'unreachable' ? 'warn' : task.state);
  }
  return [...meters].flatMap((meter) => {
    const kind = pending.has(meter.id)
      ? 'pending'
      : meter.state === 'leak_suspected'
        ? 'bad'
        : (byMeter.get(meter.id) ?? (meter.state === 'missed' ? 'warn' : 'plain'));
    return point(meter, kind);
  });
}

/** For driving: which of the wanted meters were heard, or read before. */
export function pointsOfHeard(
  meters: Iterable<Meter>,
  heard: ReadonlyMap<string, Heard>,
  read: ReadonlySet<string>,
): Point[] {
  const kind = ({ id }: Meter) => (heard.has(id) ? 'heard' : read.has(id) ? 'read' : 'open');
  return [...meters].flatMap((meter) => point(meter, kind(meter)));
}
