// Bars over time.

import { axes, color, usePlot } from './axes';

export function Chart(props: {
  label: string;
  times: number[];
  values: (number | null)[];
  unit: string;
  /** Of the labels below; the browser's without it. */
  timeZone?: string | undefined;
}) {
  const { label, times, values, unit, timeZone } = props;
  const element = usePlot(
    {
      height: 240,
      options: (box, Plot) => {
        const paths = Plot.paths.bars?.({ size: [0.7, 40] });
        const series = {
          label: unit,
          stroke: color(box, '--accent'),
          width: 1,
          fill: color(box, '--accent-soft'),
          points: { show: false },
          ...(paths ? { paths } : {}),
        };
        return {
          series: [{}, series],
          scales: { y: { range: (_plot, _low, high) => fromZero(high) } },
          axes: axes(box, unit),
          ...(timeZone && { tzDate: (at: number) => Plot.tzDate(new Date(at * 1000), timeZone) }),
          // What a test can see of a picture.
          hooks: { draw: [(drawn) => (box.dataset['from'] = String(drawn.scales['y']?.min))] },
        };
      },
      fill: (plot) => plot.setData([times, values]),
    },
    [unit, timeZone],
    [times, values],
  );
  return <div ref={element} class="chart" role="img" aria-label={label} />;
}

/** Bars are compared by their lengths, which must begin at nothing. */
function fromZero(high: number | null): [number, number] {
  return [0, high !== null && high > 0 ? high * 1.08 : 1];
}
