// A curve over time (uPlot, fetched when first shown). It is a picture: whoever uses it puts a table beside it.

import { useEffect, useRef } from 'preact/hooks';
import * as state from '../state';
import 'uplot/dist/uPlot.min.css';

export function Chart(props: {
  label: string;
  times: number[];
  values: (number | null)[];
  unit: string;
  bars?: boolean;
}) {
  const element = useRef<HTMLDivElement>(null);
  const { label, times, values, unit, bars } = props;
  const theme = state.theme.value;
  useEffect(() => {
    let plot: { destroy(): void; setSize(size: { width: number; height: number }): void } | null = null;
    let isGone = false;
    const observer = new ResizeObserver(([entry]) => {
      if (entry) plot?.setSize({ width: entry.contentRect.width, height: 240 });
    });
    void import('uplot').then(({ default: Plot }) => {
      const box = element.current;
      if (isGone || !box) return;
      const style = getComputedStyle(box);
      const color = (name: string) => style.getPropertyValue(name).trim();
      const axis = {
        stroke: color('--muted'),
        grid: { stroke: color('--line'), width: 1 },
        ticks: { stroke: color('--line') },
      };
      const paths = bars ? Plot.paths.bars?.({ size: [0.7, 40] }) : undefined;
      const series = {
        label: unit,
        stroke: color('--accent'),
        width: 2,
        fill: color('--accent-soft'),
        points: { show: false },
        ...(paths ? { paths } : {}),
      };
      const options = {
        width: box.clientWidth,
        height: 240,
        series: [{}, series],
        axes: [axis, { ...axis, size: 60 }],
        legend: { show: false },
        cursor: { y: false },
      };
      plot = new Plot(options, [times, values], box);
      observer.observe(box);
    });
    return () => {
      isGone = true;
      observer.disconnect();
      plot?.destroy();
    };
  }, [times, values, unit, bars, theme]);
  return <div ref={element} class="chart" role="img" aria-label={label} />;
}
