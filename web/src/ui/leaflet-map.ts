// The map itself: Leaflet with markers of our own, clustered by supercluster. Loaded when a map is first
// shown. Without tiles it draws streets as the meters along them tell. Markers are elements with names,
// reachable by keyboard; there are never more of them than fit the screen.

import * as L from 'leaflet';
import 'leaflet/dist/leaflet.css';
import Supercluster from 'supercluster';
import { amount } from '../lib/format';
import { streetsOf, type Street } from '../lib/geo';
import type { Place } from '../types';

export interface Point {
  id: string;
  place: Place;
  /** Colour: `open`, `read`, `pending`, `warn`, `bad`, `heard`, `plain`. */
  kind: string;
  label: string;
}

/** What markers that stand for many say. */
export interface Words {
  many: string;
  done: string;
  bad: string;
}

const METERS: Words = { many: 'meters', done: 'done', bad: 'with possible leak' };

export interface Mover {
  id: string;
  place: Place;
  kind: 'van' | 'me';
  accuracyM?: number;
  label: string;
}

interface Totals {
  done: number;
  bad: number;
}

type Leaf = { id: string; kind: string; label: string } & Totals;

const MAX_ZOOM = 20;
const CLUSTER_UP_TO = 17;
const STREET_NAMES_FROM = 16;

export class MeterMap {
  private readonly map: L.Map;
  private readonly markers = new Map<string, { marker: L.Marker; face: string }>();
  private readonly movers = new Map<string, { marker: L.Marker; circle: L.Circle | null }>();
  private readonly streetLayer = L.layerGroup();
  private readonly nameLayer = L.layerGroup();
  private readonly canvas = L.canvas({ padding: 0.3 });
  private index: Supercluster<Leaf, Totals> | null = null;
  private streets: Street[] = [];
  private streetLines: L.Polyline[] = [];
  private hasView = false;

  constructor(
    element: HTMLElement,
    private readonly onPoint: (id: string) => void,
    /** The reader moved the map by hand. */
    onDrag: () => void,
    private readonly words: Words = METERS,
  ) {
    this.map = L.map(element, {
      zoomControl: false,
      attributionControl: false,
      maxZoom: MAX_ZOOM,
      minZoom: 3,
      zoomSnap: 0.5,
    });
    // Layers cannot be drawn before there is a view; the real one comes with the points.
    this.map.setView([0, 0], 3, { animate: false });
    L.control.zoom({ position: 'bottomright' }).addTo(this.map);
    L.control.scale({ imperial: false, position: 'bottomleft' }).addTo(this.map);
    this.streetLayer.addTo(this.map);
    this.nameLayer.addTo(this.map);
    this.map.on('moveend', () => this.draw());
    this.map.on('zoomend', () => {
      const weight = streetPixels(this.map.getZoom());
      for (const polyline of this.streetLines) polyline.setStyle({ weight });
    });
    this.map.on('dragstart', onDrag);
  }

  destroy(): void {
    this.map.remove();
  }

  resize(): void {
    this.map.invalidateSize();
  }

  setStreets(meters: Parameters<typeof streetsOf>[0]): void {
    this.streets = streetsOf(meters);
    this.streetLayer.clearLayers();
    this.streetLines = [];
    const style = getComputedStyle(this.map.getContainer());
    const weight = streetPixels(this.map.getZoom());
    const color = style.getPropertyValue('--street').trim();
    const options = { renderer: this.canvas, color, weight, interactive: false };
    for (const { line } of this.streets) {
      const polyline = L.polyline(line, options);
      this.streetLines.push(polyline);
      this.streetLayer.addLayer(polyline);
    }
    this.drawNames();
  }

  setPoints(points: readonly Point[]): void {
    const index = new Supercluster<Leaf, Totals>({
      maxZoom: CLUSTER_UP_TO,
      radius: 76,
      extent: 256,
      map: ({ done, bad }) => ({ done, bad }),
      reduce: (sum, { done, bad }) => {
        sum.done += done;
        sum.bad += bad;
      },
    });
    index.load(
      points.map(({ id, place, kind, label }) => ({
        type: 'Feature',
        geometry: { type: 'Point', coordinates: [place.lon, place.lat] },
        properties: { id, kind, label, done: isDone(kind) ? 1 : 0, bad: kind === 'bad' ? 1 : 0 },
      })),
    );
    this.index = index;
    if (!this.hasView && points.length > 0) this.showAll(points);
    else this.draw();
  }

  showAll(points: readonly Point[]): void {
    this.hasView = true;
    const bounds = L.latLngBounds(points.map(({ place }) => [place.lat, place.lon]));
    this.map.fitBounds(bounds, { padding: [30, 30], maxZoom: 18, animate: false });
  }

  goTo(place: Place, zoom?: number): void {
    this.hasView = true;
    const quick = matchMedia('(prefers-reduced-motion: reduce)').matches;
    this.map.setView([place.lat, place.lon], zoom ?? Math.max(this.map.getZoom() || 0, 16), {
      animate: !quick,
    });
  }

  setMovers(movers: readonly Mover[]): void {
    const wanted = new Set(movers.map((mover) => mover.id));
    for (const [id, { marker, circle }] of this.movers) {
      if (wanted.has(id)) continue;
      marker.remove();
      circle?.remove();
      this.movers.delete(id);
    }
    for (const mover of movers) this.move(mover);
  }

  private move({ id, place, kind, accuracyM, label }: Mover): void {
    const at: L.LatLngExpression = [place.lat, place.lon];
    const known = this.movers.get(id);
    if (known) {
      known.marker.setLatLng(at);
      known.circle?.setLatLng(at).setRadius(accuracyM ?? 0);
      return;
    }
    const icon = L.divIcon({ className: `mover ${kind}`, iconSize: [30, 30], html: '<i></i>' });
    const marker = L.marker(at, {
      icon,
      keyboard: false,
      interactive: false,
      title: label,
      zIndexOffset: 1000,
    }).addTo(this.map);
    const style = {
      radius: accuracyM ?? 0,
      renderer: this.canvas,
      color: '#2a93c4',
      weight: 1,
      fillOpacity: 0.12,
      interactive: false,
    };
    const circle = kind === 'me' ? L.circle(at, style).addTo(this.map) : null;
    this.movers.set(id, { marker, circle });
  }

  /** Puts up what is in view; markers that stay keep their element, and with it the focus. */
  private draw(): void {
    if (!this.index || !this.hasView) return;
    const view = this.map.getBounds().pad(0.15);
    const box: [number, number, number, number] = [
      view.getWest(),
      view.getSouth(),
      view.getEast(),
      view.getNorth(),
    ];
    const gone = new Set(this.markers.keys());
    for (const feature of this.index.getClusters(box, Math.floor(this.map.getZoom()))) {
      const [lon = 0, lat = 0] = feature.geometry.coordinates;
      const { properties } = feature;
      const key = 'cluster' in properties ? `c${lat.toFixed(6)},${lon.toFixed(6)}` : properties.id;
      gone.delete(key);
      this.put(key, { lat, lon }, properties);
    }
    for (const key of gone) {
      this.markers.get(key)?.marker.remove();
      this.markers.delete(key);
    }
    this.drawNames();
  }

  private put(
    key: string,
    { lat, lon }: Place,
    properties: (Supercluster.ClusterProperties & Totals) | Leaf,
  ): void {
    const { icon, label, face } =
      'cluster' in properties ? clusterIcon(properties, this.words) : pointIcon(properties);
    const known = this.markers.get(key);
    if (known?.face === face) return;
    known?.marker.remove();
    const marker = L.marker([lat, lon], { icon, title: label, riseOnHover: true }).addTo(this.map);
    const element = marker.getElement();
    element?.setAttribute('aria-label', label);
    element?.setAttribute('data-testid', 'cluster' in properties ? 'cluster' : 'meter-marker');
    const open = () => {
      if ('cluster' in properties) this.expand(properties.cluster_id, { lat, lon });
      else this.onPoint(properties.id);
    };
    marker.on('click', open);
    marker.on('keypress', ({ originalEvent }: L.LeafletKeyboardEvent) => {
      if (originalEvent.key === 'Enter' || originalEvent.key === ' ') open();
    });
    this.markers.set(key, { marker, face });
  }

  private expand(cluster: number, place: Place): void {
    const zoom = this.index?.getClusterExpansionZoom(cluster) ?? this.map.getZoom() + 2;
    this.goTo(place, Math.min(MAX_ZOOM, zoom));
  }

  private drawNames(): void {
    this.nameLayer.clearLayers();
    if (!this.hasView || this.map.getZoom() < STREET_NAMES_FROM) return;
    const view = this.map.getBounds();
    const taken: L.Point[] = [];
    for (const { name, line } of this.streets) {
      const middle = along(line).filter((at) => view.contains(at));
      const at = middle[Math.floor(middle.length / 2)];
      if (!at) continue;
      const pixel = this.map.latLngToContainerPoint(at);
      if (taken.some((other) => Math.abs(other.x - pixel.x) < 110 && Math.abs(other.y - pixel.y) < 16))
        continue;
      taken.push(pixel);
      const text = document.createElement('span');
      text.textContent = name;
      const icon = L.divIcon({ className: 'street-name', html: text, iconSize: [0, 0] });
      this.nameLayer.addLayer(
        L.marker(at, { icon, interactive: false, keyboard: false, zIndexOffset: -1000 }),
      );
    }
  }
}

/** Places all along a line, which may have no corner but its ends. */
function along(line: readonly [number, number][]): [number, number][] {
  const parts = [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
  return line.slice(0, -1).flatMap(([lat, lon], at) => {
    const [lat1, lon1] = line[at + 1] ?? [lat, lon];
    return parts.map((part): [number, number] => [lat + (lat1 - lat) * part, lon + (lon1 - lon) * part]);
  });
}

/** Lines as on any map of a town: thin from afar, no broader than can be told from a mark when near. */
function streetPixels(zoom: number): number {
  return Math.max(1, Math.min(4, zoom - 14));
}

function isDone(kind: string): boolean {
  return kind === 'read' || kind === 'pending' || kind === 'heard';
}

interface Face {
  icon: L.DivIcon;
  label: string;
  face: string;
}

function clusterIcon(
  { point_count: count, done, bad }: Supercluster.ClusterProperties & Totals,
  words: Words,
): Face {
  const size = count < 20 ? 38 : count < 200 ? 46 : count < 1000 ? 54 : 62;
  const share = Math.round((100 * done) / count);
  const body = document.createElement('b');
  body.textContent = count < 10_000 ? amount(count) : `${Math.round(count / 1000)}k`;
  body.style.setProperty('--share', `${share}%`);
  const className = `cluster${share === 100 ? ' all' : ''}${bad > 0 ? ' has-bad' : ''}`;
  const label = `${amount(count)} ${words.many}${done > 0 ? `, ${amount(done)} ${words.done}` : ''}${bad > 0 ? `, ${bad} ${words.bad}` : ''}`;
  return {
    icon: L.divIcon({ className, html: body, iconSize: [size, size] }),
    label,
    face: `${count}/${done}/${bad}`,
  };
}

function pointIcon({ kind, label }: Leaf): Face {
  const icon = L.divIcon({ className: `point ${kind}`, html: '<i></i>', iconSize: [32, 32] });
  return { icon, label, face: `${kind} ${label}` };
}
