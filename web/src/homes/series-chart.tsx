// A curve with what it ranged between and a limit, by uPlot, which is fetched when first shown. Gaps stay gaps, and
// a value alone between two of them is a point.
// It is a picture: a table with the same values is beside it.

import { useEffect, useRef } from 'preact/hooks';
import type uPlot from 'uplot';
import * as state from '../state';
import { axes, color as colorOf, lonely } from '../ui/axes';
import type { Cell } from './lib';
import 'uplot/dist/uPlot.min.css';

const HEIGHT = 260;

interface Curve {
  times: number[];
  values: Cell[];
  low: Cell[];
  high: Cell[];
}

export function SeriesChart(props: {
  label: string;
  curve: Curve;
  from: number;
  to: number;
  limit: number | null;
  unit: string;
}) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const { label, curve, from, to, limit, unit } = props;
  const theme = state.theme.value;
  const latest = useRef(props);
  latest.current = props;
  // Made anew when it would look different, and only filled when values come.
  useEffect(() => {
    let isGone = false;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) plot.current?.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    void import('uplot').then(({ default: Plot }) => {
      const box = element.current;
      if (isGone || !box) return;
      plot.current = new Plot(options(box, limit, unit), data(latest.current.curve), box);
      plot.current.setScale('x', { min: latest.current.from / 1000, max: latest.current.to / 1000 });
      box.dataset['ready'] = 'true';
      show(plot.current, box);
      observer.observe(box);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, limit, unit]);
  useEffect(() => {
    plot.current?.setData(data(curve), false);
    plot.current?.setScale('x', { min: from / 1000, max: to / 1000 });
    if (plot.current && element.current) show(plot.current, element.current);
  }, [curve, from, to]);
  return <div ref={element} class="chart" role="img" aria-label={label} data-testid="chart" />;
}

/** What a test can see of a picture. */
function show(plot: uPlot, box: HTMLElement): void {
  box.dataset['top'] = String(plot.scales['y']?.max);
}

function data({ times, values, low, high }: Curve): uPlot.AlignedData {
  // uPlot paints series after series, each with its band: the line comes last, or the band would hide it.
  return [times, high, low, values];
}

function options(box: HTMLElement, limit: number | null, unit: string): uPlot.Options {
  const color = (name: string) => colorOf(box, name);
  const edge = { width: 0, points: { show: false } };
  return {
    width: box.clientWidth,
    height: HEIGHT,
    series: [
      {},
      edge,
      edge,
      {
        stroke: color('--accent'),
        width: 2,
        points: { size: 5, fill: color('--accent'), filter: lonely },
        spanGaps: false,
      },
    ],
    bands: [{ series: [1, 2], fill: color('--accent-soft') }],
    scales: { x: { time: true }, y: { range: (_plot, low, high) => yRange(low, high, limit) } },
    axes: axes(box, unit),
    legend: { show: false },
    cursor: { y: false },
    hooks: { draw: [(plot) => drawLimit(plot, limit, color('--bad'))] },
  };
}

/** Never so narrow that noise looks like a storm, and with the limit in view that the text names. */
export function yRange(low: number | null, high: number | null, limit: number | null): [number, number] {
  if (low === null || high === null) return [0, (limit ?? 1) * 1.08];
  const least = Math.max(2, Math.abs(high) * 0.1);
  const top = limit === null ? high : Math.max(high, limit);
  if (limit !== null) low = Math.min(low, limit);
  const room = Math.max((top - low) * 0.08, (least - (top - low)) / 2, 0);
  const bottom = low - room;
  return [low >= 0 ? Math.max(0, bottom) : bottom, top + room];
}

function drawLimit(plot: uPlot, limit: number | null, color: string): void {
  if (limit === null) return;
  const y = Math.round(plot.valToPos(limit, 'y', true));
  const { left, top, width, height } = plot.bbox;
  if (y < top || y > top + height) return;
  const { ctx } = plot;
  ctx.save();
  ctx.strokeStyle = color;
  ctx.setLineDash([6, 5]);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.beginPath();
  ctx.moveTo(left, y);
  ctx.lineTo(left + width, y);
  ctx.stroke();
  ctx.restore();
}
