// Two or more lines over time, by uPlot, which is fetched when first shown. It is a picture: the numbers of now are
// beside it as text.

import { useEffect, useRef } from 'preact/hooks';
import type uPlot from 'uplot';
import * as app from '../state';
import { axes, color } from '../ui/axes';
import 'uplot/dist/uPlot.min.css';

const HEIGHT = 240;
const STROKES = ['--accent', '--good', '--bad'];

export interface Line {
  name: string;
  values: (number | null)[];
}

export function RateChart(props: {
  label: string;
  unit: string;
  times: number[];
  lines: Line[];
  fromMs: number;
  toMs: number;
}) {
  const element = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const { label, unit, lines } = props;
  const theme = app.theme.value;
  const names = lines.map((line) => line.name).join();
  // Made anew when it would look different, and only filled when values come.
  useEffect(() => {
    let isGone = false;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) plot.current?.setSize({ width: entry.contentRect.width, height: HEIGHT });
    });
    void import('uplot').then(({ default: Plot }) => {
      const box = element.current;
      if (isGone || !box) return;
      plot.current = new Plot(options(box, latest.current), [[]], box);
      fill(plot.current, latest.current, box);
      observer.observe(box);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [theme, unit, names]);
  useEffect(() => {
    if (plot.current && element.current) fill(plot.current, props, element.current);
  });
  return (
    <figure class="rate-chart">
      <div ref={element} class="chart" role="img" aria-label={label} data-testid="chart" />
      <figcaption class="legend">
        {lines.map((line, at) => (
          <span key={line.name}>
            <i style={{ background: `var(${STROKES[at]})` }} aria-hidden="true" />
            {line.name}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}

type Shown = Parameters<typeof RateChart>[0];

function fill(plot: uPlot, { times, lines, fromMs, toMs }: Shown, box: HTMLElement): void {
  plot.setData([times.map((ms) => ms / 1000), ...lines.map((line) => line.values)], false);
  plot.setScale('x', { min: fromMs / 1000, max: toMs / 1000 });
  // What a test can see of a picture.
  box.dataset['points'] = String(times.length);
}

/** Seconds between two labels: labels of the same minute would look alike. */
const STEPS_S = [60, 300, 600, 900, 1800, 3600];

function options(box: HTMLElement, { lines, unit }: Shown): uPlot.Options {
  const [time, value] = axes(box, unit);
  return {
    width: box.clientWidth,
    height: HEIGHT,
    series: [
      {},
      ...lines.map((_line, at) => ({
        stroke: color(box, STROKES[at] ?? '--accent'),
        width: 2,
        points: { show: false },
      })),
    ],
    scales: { x: { time: true }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...time, incrs: STEPS_S }, { ...value }],
    legend: { show: false },
    cursor: { show: false },
  };
}
