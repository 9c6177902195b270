// What charts have in common: uPlot, which is fetched when first shown, and axes with units, in the notation of the
// browser's language; uPlot's own is American. A chart is a picture: whoever uses one puts a table or text beside it.

import type { RefObject } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import type uPlot from 'uplot';
import { numbers, times } from '../lib/format';
import * as state from '../state';
import 'uplot/dist/uPlot.min.css';

const DAY_S = 86_400;
const MONTH_S = 28 * DAY_S;

export function color(box: HTMLElement, name: string): string {
  return getComputedStyle(box).getPropertyValue(name).trim();
}

interface Plotted {
  height: number;
  options: (box: HTMLElement, Plot: typeof uPlot) => Omit<uPlot.Options, 'width' | 'height'>;
  fill: (plot: uPlot, box: HTMLElement) => void;
}

/** Where a chart is drawn: made anew when it would look different, and only filled when values come. */
export function usePlot(plotted: Plotted, look: unknown[], values?: unknown[]): RefObject<HTMLDivElement> {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(plotted);
  latest.current = plotted;
  useEffect(() => {
    let isGone = false;
    const { height } = plotted;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) plot.current?.setSize({ width: entry.contentRect.width, height });
    });
    void import('uplot').then(({ default: Plot }) => {
      const box = element.current;
      if (isGone || !box) return;
      const { options, fill } = latest.current;
      const frame = { width: box.clientWidth, height, legend: { show: false }, cursor: { y: false } };
      plot.current = new Plot({ ...frame, ...options(box, Plot) }, [[]], box);
      fill(plot.current, box);
      observer.observe(box);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [state.theme.value, ...look]);
  useEffect(() => {
    if (plot.current && element.current) latest.current.fill(plot.current, element.current);
  }, values);
  return element;
}

/** Labels of moments (seconds since 1970) that are `step` apart. */
export function timeLabels(moments: readonly number[], step: number): string[] {
  const month = times({ month: 'short', year: 'numeric' });
  const day = times({ day: 'numeric', month: 'short' });
  const clock = times({ hour: '2-digit', minute: '2-digit' });
  let before = '';
  return moments.map((moment) => {
    const at = moment * 1000;
    if (step >= MONTH_S) return month(at);
    const date = day(at);
    if (step >= DAY_S) return date;
    const isNew = date !== before;
    before = date;
    return isNew ? `${clock(at)}\n${date}` : clock(at);
  });
}

/** Labels of values that are `step` apart: all with as many decimals as that takes. */
export function valueLabels(values: readonly number[], step: number): string[] {
  const digits = Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)));
  const show = numbers({ minimumFractionDigits: digits, maximumFractionDigits: digits });
  // Steps of a tenth do not add up to exactly nothing.
  return values.map((value) => show(Math.abs(value) < step / 1e6 ? 0 : value));
}

/** The two axes of a chart. */
export function axes(box: HTMLElement, unit: string): uPlot.Axis[] {
  const [muted, line] = [color(box, '--muted'), color(box, '--line')];
  const font = `12px ${getComputedStyle(box).fontFamily}`;
  const look = { stroke: muted, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
  return [
    {
      ...look,
      size: 46,
      space: 74,
      values: (_plot, splits, _axis, _space, step) => timeLabels(splits, step),
    },
    {
      ...look,
      size: 58,
      label: unit,
      labelFont: font,
      labelSize: 20,
      values: (_plot, splits, _axis, _space, step) => valueLabels(splits, step),
    },
  ];
}

/** Points without neighbours: no line would show them. All points where there is room for them. */
export function lonely(plot: uPlot, series: number, isRoomy: boolean): number[] | null {
  if (isRoomy) return null;
  const values = plot.data[series] ?? [];
  const is = (at: number) => values[at] !== null && values[at] !== undefined;
  const alone: number[] = [];
  for (let at = 0; at < values.length; at += 1) if (is(at) && !is(at - 1) && !is(at + 1)) alone.push(at);
  return alone.length > 0 ? alone : null;
}
