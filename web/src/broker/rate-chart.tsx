// Two or more lines over time; the numbers of now are beside them as text.

import type uPlot from 'uplot';
import { axes, color, usePlot } from '../ui/axes';

const STROKES = ['--accent', '--good', '--bad'];

interface Line {
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
  const { label, unit, lines } = props;
  const names = lines.map((line) => line.name).join();
  const element = usePlot(
    { height: 240, options: (box) => options(box, props), fill: (plot, box) => fill(plot, props, box) },
    [unit, names],
  );
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

function options(box: HTMLElement, { lines, unit }: Shown): Omit<uPlot.Options, 'width' | 'height'> {
  const [time, value] = axes(box, unit);
  return {
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
    cursor: { show: false },
  };
}
