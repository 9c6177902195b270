// A curve with what it ranged between and a limit. Gaps stay gaps, and a value alone between two of them is a point.

import type uPlot from 'uplot';
import { axes, color as colorOf, lonely, usePlot } from '../ui/axes';
import type { Cell } from './lib';

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
  const { label, curve, from, to, limit, unit } = props;
  const fill = (plot: uPlot, box: HTMLElement) => {
    plot.setData(data(curve), false);
    plot.setScale('x', { min: from / 1000, max: to / 1000 });
    // What a test can see of a picture.
    [box.dataset['ready'], box.dataset['top']] = ['true', String(plot.scales['y']?.max)];
  };
  const plotted = { height: 260, options: (box: HTMLElement) => options(box, limit, unit), fill };
  const element = usePlot(plotted, [limit, unit], [curve, from, to]);
  return <div ref={element} class="chart" role="img" aria-label={label} data-testid="chart" />;
}

function data({ times, values, low, high }: Curve): uPlot.AlignedData {
  // uPlot paints series after series, each with its band: the line comes last, or the band would hide it.
  return [times, high, low, values];
}

function options(
  box: HTMLElement,
  limit: number | null,
  unit: string,
): Omit<uPlot.Options, 'width' | 'height'> {
  const color = (name: string) => colorOf(box, name);
  const edge = { width: 0, points: { show: false } };
  return {
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
