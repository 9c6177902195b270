//! Pictures: from a figure's description and the samples to SVG, with the colours left to the page.
//!
//! kuva draws; colours are CSS variables, so that the page decides between light, dark and print.
//! Each picture is drawn twice, wide and narrow, because text that shrinks with a picture cannot be
//! read on a phone. The text alternative says the same figures in words.

use std::sync::Arc;

use kuva::backend::svg::SvgBackend;
use kuva::plot::legend::LegendPosition;
use kuva::plot::scatter::MarkerShape;
use kuva::plot::{BarPlot, BoxPlot, EcdfPlot, LinePlot, LineStyle, ScatterPlot};
use kuva::render::layout::{Layout, TickFormat};
use kuva::render::plots::Plot;
use kuva::render::render::render_multiple;
use kuva::render::theme::Theme;

use super::number::{short, tick, with_interval};
use super::results::{CellResults, Results};
use crate::experiment::{Figure, Measure, Shape};
use crate::stats::{Estimate, median, quantile, sorted};

/// Colours of series; the page defines as many.
const COLOURS: usize = 8;

/// Steps of time into which a time series is summed up at most, and at least.
const TIME_STEPS: usize = 120;
const FEW_TIME_STEPS: usize = 10;
/// Numbers that a step of time should have for its percentiles.
const STEP_NUMBERS: usize = 8;

/// Maximum number of values that a distribution shows one by one; of more, evenly chosen ranks stand for all.
const MAX_NUMBERS: usize = 2_000;

/// A picture.
#[derive(Debug)]
pub(super) struct RenderedFigure {
    pub(super) title: String,
    pub(super) note: String,
    /// SVG for wide pages, and for narrow ones.
    pub(super) wide: String,
    pub(super) narrow: String,
    pub(super) alternative: String,
}

/// Draws a figure: one picture, or one for each value of its `each`.
pub(super) fn draw(results: &Results, figure: &Figure, id: &str) -> Vec<RenderedFigure> {
    let Some(measure) = results.experiment.measures.get(figure.measure.get_ref()) else {
        return Vec::new();
    };
    let each = figure.each.as_ref().map(|each| each.get_ref().as_str());
    let levels = each.map_or_else(|| vec![""], |each| results.levels(each));
    let pictures = levels.iter().enumerate().filter_map(|(index, level)| {
        let cells: Vec<&CellResults> = results
            .cells
            .iter()
            .filter(|cell| cell.cell.matches(&figure.only))
            .filter(|cell| each.is_none_or(|each| cell.cell.get(each) == Some(*level)))
            .filter(|cell| cell.figures.contains_key(figure.measure.get_ref()))
            .collect();
        let title = match each {
            Some(each) => {
                let (each_name, level) = (each.replace('_', " "), results.label(each, level));
                format!("{}, {each_name} {level}", figure.title)
            }
            None => figure.title.clone(),
        };
        Picture { results, figure, measure, cells, title, id: format!("{id}-{index}") }.draw()
    });
    pictures.collect()
}

struct Picture<'a> {
    results: &'a Results,
    figure: &'a Figure,
    measure: &'a Measure,
    cells: Vec<&'a CellResults>,
    title: String,
    id: String,
}

/// A size to draw in.
#[derive(Clone, Copy)]
struct Size {
    width: f64,
    height: f64,
    narrow: bool,
}

fn colour(index: usize) -> String {
    format!("var(--series-{})", index % COLOURS)
}

impl Picture<'_> {
    fn draw(&self) -> Option<RenderedFigure> {
        let wide = self.svg(Size { width: 760.0, height: 400.0, narrow: false })?;
        let narrow = self.svg(Size { width: 380.0, height: 360.0, narrow: true })?;
        Some(RenderedFigure {
            title: self.title.clone(),
            note: self.figure.note.clone(),
            wide,
            narrow,
            alternative: self.alternative(),
        })
    }

    /// Series with their label and their cells; one without a name if the figure has no `series`.
    fn series(&self) -> Vec<(String, Vec<&CellResults>)> {
        let Some(series) = &self.figure.series else {
            return vec![(String::new(), self.cells.clone())];
        };
        let condition = series.get_ref();
        let levels = self.results.levels(condition).into_iter();
        let with_cells = levels.map(|level| {
            let cells = self.cells.iter().copied();
            let cells = cells.filter(|cell| cell.cell.get(condition) == Some(level)).collect();
            (self.results.label(condition, level).to_owned(), cells)
        });
        with_cells.filter(|(_, cells): &(_, Vec<_>)| !cells.is_empty()).collect()
    }

    fn x(&self) -> &str {
        self.figure.x.as_ref().map_or("", |x| x.get_ref())
    }

    fn x_levels(&self) -> Vec<&str> {
        let levels = self.results.levels(self.x());
        let used =
            |level: &&str| self.cells.iter().any(|cell| cell.cell.get(self.x()) == Some(level));
        levels.into_iter().filter(used).collect()
    }

    /// The figure of the cell at a value of `x`; the median of the figures if there are several.
    fn at(&self, cells: &[&CellResults], level: &str) -> Option<Estimate> {
        let name = self.figure.measure.get_ref();
        let here = cells.iter().filter(|cell| cell.cell.get(self.x()) == Some(level));
        let figures: Vec<Estimate> =
            here.filter_map(|cell| cell.figures.get(name).copied()).collect();
        if let [one] = figures[..] {
            return Some(one);
        }
        let middle =
            |part: fn(&Estimate) -> f64| median(&figures.iter().map(part).collect::<Vec<_>>());
        Some(Estimate {
            value: middle(|e| e.value)?,
            low: middle(|e| e.low)?,
            high: middle(|e| e.high)?,
            count: figures.iter().map(|e| e.count).sum(),
        })
    }

    /// All single numbers of some cells, those of samples without points being their value.
    fn numbers(&self, cells: &[&CellResults]) -> Vec<f64> {
        let name = self.figure.measure.get_ref();
        let samples = cells.iter().flat_map(|cell| self.results.samples_of(cell));
        let numbers = samples.flat_map(|sample| match sample.points.get(name) {
            Some(points) => points.iter().map(|point| point[1]).collect(),
            None => sample.values.get(name).copied().into_iter().collect::<Vec<_>>(),
        });
        thin(sorted(&numbers.collect::<Vec<_>>()))
    }

    fn svg(&self, size: Size) -> Option<String> {
        let plots = match self.figure.shape {
            Shape::Bars => self.bars(),
            Shape::Lines => self.lines(),
            Shape::Boxes => self.boxes(),
            Shape::Ecdf => self.ecdf(),
            Shape::Time => self.time(),
        };
        if plots.is_empty() {
            return None;
        }
        let layout = self.layout(&plots, size);
        let scene = render_multiple(plots, layout);
        let which = if size.narrow { "n" } else { "w" };
        Some(embed(&SvgBackend::new().render_scene(&scene), &format!("{}{which}", self.id)))
    }

    fn layout(&self, plots: &[Plot], size: Size) -> Layout {
        let unit = format!("{} in {}", self.measure.title, self.measure.unit);
        let x = self.x().replace('_', " ");
        let (x_label, y_label) = match self.figure.shape {
            Shape::Ecdf => (unit, "share of values".to_owned()),
            Shape::Time => ("seconds since the beginning".to_owned(), unit),
            Shape::Bars | Shape::Lines | Shape::Boxes => (x, unit),
        };
        // What fits beside the axes, in characters.
        let wrap = if size.narrow { 34 } else { 42 };
        let mut layout = Layout::auto_from_plots(plots)
            .with_width(size.width)
            .with_height(size.height)
            .with_theme(theme())
            .with_x_label(x_label)
            .with_y_label(y_label)
            .with_x_label_wrap(wrap)
            .with_y_label_wrap(wrap)
            .with_legend_position(LegendPosition::OutsideBottomColumns)
            .with_legend_box(false)
            .with_label_size(13)
            .with_tick_size(12)
            .with_tick_format(TickFormat::Custom(Arc::new(tick)))
            .with_body_size(12);
        if size.narrow && matches!(self.figure.shape, Shape::Boxes | Shape::Bars) {
            layout = layout.with_x_tick_rotate(-40.0);
        }
        match (self.figure.log, self.figure.shape) {
            (true, Shape::Ecdf) => layout.with_log_x(),
            // A logarithmic axis has no natural beginning; the next decade below is a readable one.
            (true, _) => {
                layout.with_log_y().with_y_axis_min(self.decade_below()).with_clamp_y_axis()
            }
            (false, _) => layout,
        }
    }

    fn decade_below(&self) -> f64 {
        let name = self.figure.measure.get_ref();
        let figures = self.cells.iter().filter_map(|cell| cell.figures.get(name));
        let lowest = figures.map(|e| e.low).filter(|low| *low > 0.0).reduce(f64::min);
        10_f64.powf(lowest.unwrap_or(1.0).log10().floor())
    }

    fn bars(&self) -> Vec<Plot> {
        let series = self.series();
        let (mut bars, mut errors) = (BarPlot::new().with_width(0.75), Vec::new());
        for level in self.x_levels() {
            let figures: Vec<Option<Estimate>> =
                series.iter().map(|(_, cells)| self.at(cells, level)).collect();
            for figure in &figures {
                errors.push(figure.map_or((0.0, 0.0), |e| (e.value - e.low, e.high - e.value)));
            }
            // A bar that is not there has no height; the table beneath says why.
            let heights = figures.iter().map(|figure| figure.map_or(0.0, |e| e.value));
            let coloured = heights.enumerate().map(|(index, height)| (height, colour(index)));
            bars =
                bars.with_group(self.results.label(self.x(), level), coloured.collect::<Vec<_>>());
        }
        if bars.groups.is_empty() {
            return Vec::new();
        }
        if self.figure.series.is_some() {
            bars = bars.with_legend(series.iter().map(|(label, _)| label.as_str()).collect());
        }
        vec![Plot::Bar(bars.with_asymmetric_error(errors).with_error_color("var(--ink)"))]
    }

    fn lines(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for (index, (label, cells)) in self.series().into_iter().enumerate() {
            let mut figures: Vec<(f64, Estimate)> = self
                .x_levels()
                .iter()
                .filter_map(|level| Some((level.parse::<f64>().ok()?, self.at(&cells, level)?)))
                .collect();
            figures.sort_by(|a, b| a.0.total_cmp(&b.0));
            let points: Vec<(f64, f64)> = figures.iter().map(|(x, e)| (*x, e.value)).collect();
            let spread = figures.iter().map(|(_, e)| (e.value - e.low, e.high - e.value));
            if points.is_empty() {
                continue;
            }
            let line = LinePlot::new().with_data(points.clone()).with_color(colour(index));
            let line = line.with_line_style(dashes(index)).with_stroke_width(2.0);
            plots.push(Plot::Line(if label.is_empty() { line } else { line.with_legend(label) }));
            let marks = ScatterPlot::new().with_data(points).with_color(colour(index));
            let marks = marks.with_marker(marker(index)).with_size(4.5);
            plots.push(Plot::Scatter(marks.with_y_err_asymmetric(spread.collect::<Vec<_>>())));
        }
        plots
    }

    fn boxes(&self) -> Vec<Plot> {
        let (mut boxes, mut colours) = (BoxPlot::new().with_width(0.7), Vec::new());
        let series = self.series();
        for level in self.x_levels() {
            for (index, (label, cells)) in series.iter().enumerate() {
                let here: Vec<&CellResults> = cells
                    .iter()
                    .copied()
                    .filter(|cell| cell.cell.get(self.x()) == Some(level))
                    .collect();
                let numbers = self.numbers(&here);
                if numbers.is_empty() {
                    continue;
                }
                let x = self.results.label(self.x(), level);
                let name = if label.is_empty() { x.to_owned() } else { format!("{x} {label}") };
                boxes = boxes.with_group(name, numbers);
                colours.push(colour(index));
            }
        }
        if colours.is_empty() {
            Vec::new()
        } else {
            vec![Plot::Box(boxes.with_group_colors(colours))]
        }
    }

    fn ecdf(&self) -> Vec<Plot> {
        let mut plot = EcdfPlot::new().with_stroke_width(2.0);
        for (index, (label, cells)) in self.series().into_iter().enumerate() {
            let numbers = self.numbers(&cells);
            if !numbers.is_empty() {
                plot = plot.with_data_colored(label, numbers, colour(index));
            }
        }
        if plot.groups.is_empty() {
            return Vec::new();
        }
        vec![Plot::Ecdf(if self.figure.series.is_some() { plot.with_legend("") } else { plot })]
    }

    fn time(&self) -> Vec<Plot> {
        let mut plots = Vec::new();
        for (index, (label, cells)) in self.series().into_iter().enumerate() {
            let steps = self.time_steps(&cells);
            if steps.is_empty() {
                continue;
            }
            let line = LinePlot::new()
                .with_data(
                    steps.iter().map(|(at, _, middle, _)| (*at, *middle)).collect::<Vec<_>>(),
                )
                .with_color(colour(index))
                .with_stroke_width(1.8)
                .with_line_style(dashes(index))
                .with_band(
                    steps.iter().map(|step| step.1).collect::<Vec<_>>(),
                    steps.iter().map(|step| step.3).collect::<Vec<_>>(),
                );
            plots.push(Plot::Line(if label.is_empty() { line } else { line.with_legend(label) }));
        }
        plots
    }

    /// Time, 10th percentile, median and 90th percentile over all samples of some cells.
    fn time_steps(&self, cells: &[&CellResults]) -> Vec<(f64, f64, f64, f64)> {
        let name = self.figure.measure.get_ref();
        let samples = cells.iter().flat_map(|cell| self.results.samples_of(cell));
        let points: Vec<[f64; 2]> =
            samples.filter_map(|sample| sample.points.get(name)).flatten().copied().collect();
        let Some(end) = points.iter().map(|point| point[0]).reduce(f64::max) else {
            return Vec::new();
        };
        let count = (points.len() / STEP_NUMBERS).clamp(FEW_TIME_STEPS, TIME_STEPS);
        let width = (end / count as f64).max(1e-6);
        let mut steps = vec![Vec::new(); count];
        for [at, value] in points {
            steps[((at / width) as usize).min(count - 1)].push(value);
        }
        let summed = steps.into_iter().enumerate().filter_map(|(index, values)| {
            let values = sorted(&values);
            let at = (index as f64 + 0.5) * width;
            Some((at, quantile(&values, 0.1)?, quantile(&values, 0.5)?, quantile(&values, 0.9)?))
        });
        summed.collect()
    }

    /// The picture in words.
    fn alternative(&self) -> String {
        let mut words = format!("{}, in {}.", self.title, self.measure.unit);
        let say = |words: &mut String, label: &str, what: &str| {
            words.push(' ');
            words.push_str(if label.is_empty() { "All" } else { label });
            words.push_str(": ");
            words.push_str(what);
            words.push('.');
        };
        for (label, cells) in self.series() {
            if matches!(self.figure.shape, Shape::Bars | Shape::Lines) {
                let levels = self.x_levels();
                let told = levels.iter().map(|level| {
                    let figure = self.at(&cells, level);
                    let figure = figure.map_or("no figure".to_owned(), |e| with_interval(&e));
                    format!("{figure} at {}", self.results.label(self.x(), level))
                });
                say(&mut words, &label, &told.collect::<Vec<_>>().join("; "));
            } else {
                let numbers = self.numbers(&cells);
                let at = |q| quantile(&numbers, q).map_or("none".to_owned(), short);
                let told =
                    format!("median {}, 90 % below {}, 99 % below {}", at(0.5), at(0.9), at(0.99));
                say(&mut words, &label, &told);
            }
        }
        words
    }
}

/// Evenly chosen ranks of sorted numbers.
fn thin(numbers: Vec<f64>) -> Vec<f64> {
    if numbers.len() <= MAX_NUMBERS {
        return numbers;
    }
    let last = (MAX_NUMBERS - 1) as f64;
    (0..MAX_NUMBERS).filter_map(|rank| quantile(&numbers, rank as f64 / last)).collect()
}

fn theme() -> Theme {
    Theme {
        background: "none".into(),
        axis_color: "var(--axis)".into(),
        grid_color: "var(--grid)".into(),
        tick_color: "var(--axis)".into(),
        text_color: "var(--ink)".into(),
        legend_bg: "none".into(),
        legend_border: "none".into(),
        pie_leader: "var(--axis)".into(),
        box_median: "var(--ink)".into(),
        violin_border: "var(--axis)".into(),
        colorbar_border: "var(--axis)".into(),
        font_family: Some("inherit".into()),
        show_grid: true,
    }
}

fn dashes(index: usize) -> LineStyle {
    match index % 4 {
        0 => LineStyle::Solid,
        1 => LineStyle::Dashed,
        2 => LineStyle::DashDot,
        _ => LineStyle::Dotted,
    }
}

fn marker(index: usize) -> MarkerShape {
    match index % 4 {
        0 => MarkerShape::Circle,
        1 => MarkerShape::Square,
        2 => MarkerShape::Triangle,
        _ => MarkerShape::Diamond,
    }
}

/// Makes a drawing part of a page: it scales with the page, and its identifiers are its own.
fn embed(svg: &str, id: &str) -> String {
    let attribute = |name: &str| {
        let from = svg.find(&format!(" {name}=\""))? + name.len() + 3;
        svg.get(from..)?.split('"').next()
    };
    let (width, height) =
        (attribute("width").unwrap_or("760"), attribute("height").unwrap_or("400"));
    let open = format!("<svg aria-hidden=\"true\" viewBox=\"0 0 {width} {height}\" ");
    svg.replacen("<svg ", &open, 1)
        .replace(" id=\"", &format!(" id=\"{id}-"))
        .replace("url(#", &format!("url(#{id}-"))
}
