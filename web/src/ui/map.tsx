// A map in a screen: fetches the map's code when first shown, and follows what it is given.

import { effect } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';
import * as state from '../state';
import type { Meter, Place } from '../types';
import type { MeterMap, Mover, Point, Words } from './leaflet-map';

export function MapView(props: {
  points: readonly Point[];
  /** What streets are drawn from; may be more than is shown. */
  streetsOf: Iterable<Meter>;
  movers: readonly Mover[];
  /** Kept in the middle, until the reader moves the map. */
  follow: Place | null;
  onPoint: (id: string) => void;
  onDrag?: () => void;
  label: string;
  words?: Words;
}) {
  const element = useRef<HTMLDivElement>(null);
  const [map, setMap] = useState<MeterMap | null>(null);
  const [isBroken, setBroken] = useState(false);
  const handlers = useRef(props);
  handlers.current = props;

  useEffect(() => {
    let made: MeterMap | null = null;
    let isGone = false;
    import('./leaflet-map').then(
      ({ MeterMap }) => {
        if (isGone || !element.current) return;
        made = new MeterMap(
          element.current,
          (id) => handlers.current.onPoint(id),
          () => handlers.current.onDrag?.(),
          handlers.current.words,
        );
        setMap(made);
      },
      () => setBroken(true),
    );
    return () => {
      isGone = true;
      made?.destroy();
    };
  }, []);
  useEffect(() => {
    if (!map || !element.current) return undefined;
    const observer = new ResizeObserver(() => map.resize());
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [map]);
  // Streets are drawn in a colour of the theme.
  useEffect(
    () =>
      effect(() => {
        if (state.theme.value) map?.setStreets(props.streetsOf);
      }),
    [map, props.streetsOf],
  );
  useEffect(() => map?.setPoints(props.points), [map, props.points]);
  useEffect(() => map?.setMovers(props.movers), [map, props.movers]);
  const { follow } = props;
  useEffect(() => {
    if (follow) map?.goTo(follow);
  }, [map, follow?.lat, follow?.lon]);

  if (isBroken) return <p class="note warn">The map could not be loaded. The list has the same meters.</p>;
  return (
    <div
      ref={element}
      class="map"
      role="application"
      aria-label={props.label}
      data-testid="map"
      data-ready={map !== null}
    />
  );
}
