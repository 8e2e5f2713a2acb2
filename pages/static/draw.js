// Curves drawn by uPlot in place of the still pictures: of a run, or of several, with what happened to the training.
"use strict";
globalThis.curves = (() => {
  // Shape, colour, and whether several runs in one chart show it too.
  const KINDS = {
    start: ["▷", "--soft", false],
    checkpoint: ["·", "--soft", false],
    best: ["★", "--good", false],
    preemption: ["✕", "--warning", true],
    interruption: ["‖", "--soft", true],
    kill: ["✕", "--soft", true],
    crash: ["✕", "--bad", true],
    resume: ["▶", "--good", true],
    end: ["□", "--soft", false],
  };
  // Of the lines of a chart. Runs in one chart have dashes of their own number, so that of eight no two look the same.
  const COLOURS = ["--s0", "--s1", "--s2", "--s3", "--s4"];
  const DASHES = [undefined, [7, 4], [2, 4], [10, 3, 2, 3], [4, 3]];
  const OF_RUNS = [undefined, [7, 5], [2, 3]];
  const INCREMENTS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

  let runs = [];
  // By the charts' titles: element, plot, names of curves, unit.
  const charts = new Map();
  // Where charts lie that no picture was made for.
  let made = null;
  let zoomed = false;

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => String(Number(value.toPrecision(4)));
  const size = (value) => {
    const power = Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log2(Math.abs(value) || 1) / 10)));
    return `${Number((value / 1024 ** power).toPrecision(3))} ${SIZES[power]}`;
  };
  const duration = (seconds) => {
    const [unit, name] = seconds < 120 ? [1, "s"] : seconds < 7200 ? [60, "min"] : [3600, "h"];
    return `${Number((seconds / unit).toPrecision(3))} ${name}`;
  };
  const percent = (value) => `${Number((value * 100).toPrecision(4))} %`;
  const shown = (show) => (value) => (value === null || value === undefined ? "–" : show(value));
  const UNITS = { number: shown(number), percent: shown(percent), size: shown(size) };
  const letter = (at) => (runs.length > 1 ? "ABCDEFGH"[at] : "");

  const over = make(
    "select",
    { id: "chart-over" },
    new Option("steps", "steps"),
    new Option("training time", "trained"),
    new Option("wall time", "times"),
  );
  const log = make("input", { id: "chart-log", type: "checkbox" });
  const smooth = make("input", { id: "chart-smooth", type: "range", min: "0", max: "0.99", step: "0.01", value: "0" });
  const events = make("ul", { class: "events" });
  const controls = make(
    "form",
    {},
    make("label", {}, "Over ", over),
    make("label", {}, log, " log scale"),
    make("label", {}, "Smoothing ", smooth),
    make("span", { class: "note" }, "Drag to look closer, double click for the whole."),
  );
  const panel = make("div", { class: "live-charts" }, controls, events);

  // Seconds in which a run trained, up to a moment: what lies between attempts is cut out.
  const trainedUntil = (run, time) =>
    time - run.gaps.reduce((sum, [begin, end]) => sum + Math.max(0, Math.min(time, end) - begin), 0);
  const placeOf = (run, step, time) => {
    if (over.value === "steps") return step;
    return time === null || over.value === "times" ? time : trainedUntil(run, time);
  };

  // As TensorBoard does it: a running mean that forgets, without the pull towards 0 of its beginning.
  const smoothed = (values, weight) => {
    let [mean, whole] = [0, 0];
    return values.map((value) => {
      if (value === null) return null;
      mean = weight * mean + (1 - weight) * value;
      whole = weight * whole + (1 - weight);
      return mean / whole;
    });
  };

  // uPlot wants places in order; of a step that was trained twice, the value that counted is the later one.
  const pointsOf = (run, name, isLog) => {
    const found = run.curves.find((one) => one.name === name);
    const points = new Map();
    (found ? found.steps : []).forEach((step, at) => {
      const x = placeOf(run, step, found.times[at]);
      const value = found.values[at];
      // Between attempts there is no value; but over wall time nothing is missing there.
      if (x !== null && (value !== null || over.value === "times")) points.set(x, isLog && value <= 0 ? null : value);
    });
    const xs = Array.from(points.keys()).sort((a, b) => a - b);
    return [xs, xs.map((x) => points.get(x))];
  };

  const marksOf = (run) =>
    run.marks
      .map((mark) => ({ ...mark, x: placeOf(run, mark.step, mark.time) }))
      .filter((mark) => mark.x !== null && KINDS[mark.kind] && (runs.length === 1 || KINDS[mark.kind][2]));

  // One axis for all charts, marks included, which may lie before the first point and behind the last.
  const whole = () => {
    let [first, last] = [Infinity, -Infinity];
    const take = (x) => ([first, last] = x === null ? [first, last] : [Math.min(first, x), Math.max(last, x)]);
    for (const run of runs) {
      for (const { steps, times } of run.curves) steps.forEach((step, at) => take(placeOf(run, step, times[at])));
      for (const mark of marksOf(run)) take(mark.x);
    }
    return first < last ? [first, last] : [first - 1, first + 1];
  };
  let bounds = [0, 1];

  const drawGaps = (plot) => {
    if (over.value !== "times" || runs.length > 1) return;
    const { top, height } = plot.bbox;
    plot.ctx.save();
    plot.ctx.fillStyle = colour("--gap");
    for (const [begin, end] of runs[0].gaps) {
      const [left, right] = [begin, end].map((x) => Math.max(plot.bbox.left, plot.valToPos(x, "x", true)));
      plot.ctx.fillRect(left, top, Math.min(right, plot.bbox.left + plot.bbox.width) - left, height);
    }
    plot.ctx.restore();
  };

  const drawMarks = (plot) => {
    const { left, top, width, height } = plot.bbox;
    const context = plot.ctx;
    const pixels = devicePixelRatio;
    context.save();
    context.textAlign = "center";
    context.textBaseline = "top";
    context.font = `${12 * pixels}px system-ui, sans-serif`;
    runs.forEach((run, at) => {
      for (const mark of marksOf(run)) {
        const x = plot.valToPos(mark.x, "x", true);
        if (!(x >= left && x <= left + width)) continue;
        const [shape, name] = KINDS[mark.kind];
        const isSmall = mark.kind === "checkpoint";
        context.strokeStyle = context.fillStyle = colour(name);
        context.lineWidth = pixels;
        context.setLineDash((OF_RUNS[at % OF_RUNS.length] || []).map((length) => length * pixels));
        context.globalAlpha = isSmall ? 0.5 : 1;
        context.beginPath();
        context.moveTo(x, isSmall ? top + height * 0.94 : top);
        context.lineTo(x, top + height);
        context.stroke();
        if (!isSmall) context.fillText(shape + letter(at), x, top - 14 * pixels);
      }
    });
    context.restore();
  };

  const listMarks = () => {
    const counts = new Map();
    for (const mark of runs.flatMap(marksOf)) counts.set(mark.kind, (counts.get(mark.kind) || 0) + 1);
    events.replaceChildren(
      ...Array.from(counts, ([kind, count]) => {
        const sign = kind === "checkpoint" ? "╷" : KINDS[kind][0];
        const shape = make("span", { class: "event-mark", "aria-hidden": "true" }, sign);
        // By CSSOM: the policy allows no style of a string.
        shape.style.color = colour(KINDS[kind][1]);
        return make("li", {}, shape, `${kind} (${count})`);
      }),
    );
  };

  // Names out of a run: what no reader can see is shown as a sign.
  const printable = (name) => name.replace(/\p{C}/gu, "\ufffd");
  // What tells a curve from the others of its chart.
  const shortOf = (names, name) => {
    if (names.length === 1) return printable(name);
    const [first, rest] = [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)];
    return printable(names.every((other) => other.startsWith(`${first}/`)) ? rest : first);
  };

  const weight = () => Number(smooth.value);
  const linesOf = (chart) => chart.names.flatMap((name, at) => runs.map((run, of) => ({ name, at, run, of })));
  const dataOf = (chart) => {
    const tables = linesOf(chart).map(({ name, run }) => pointsOf(run, name, log.checked));
    const faint = weight() ? tables : [];
    const drawn = weight() ? tables.map(([xs, ys]) => [xs, smoothed(ys, weight())]) : tables;
    return uPlot.join([...drawn, ...faint]);
  };

  const seriesOf = (chart) => {
    const lines = linesOf(chart);
    const styles = (at, dashes) => ({ stroke: colour(COLOURS[at % COLOURS.length]), dash: dashes[at % dashes.length] });
    const style = ({ at, of }) => (runs.length > 1 ? styles(of, OF_RUNS) : styles(at, DASHES));
    const named = lines.map((line) => ({
      ...style(line),
      label: `${letter(line.of)} ${shortOf(chart.names, line.name)}`.trim(),
      width: 2,
      // Of lines in one chart the places of the others are no gaps: uPlot leaves them undefined.
      spanGaps: false,
      value: (_, value) => UNITS[chart.unit](value),
    }));
    const measured = { label: "as measured", width: 1, alpha: 0.3, value: named[0]?.value };
    const faint = lines.map((line) => ({ ...style(line), ...measured }));
    return [...named, ...(weight() ? faint : [])];
  };

  // A chart and its legend together take the height that the style gives, which is that of the still picture.
  const sizeOf = ({ canvas, plot }) => ({
    width: canvas.clientWidth || 440,
    height: (canvas.clientHeight || 240) - (plot ? plot.root.querySelector(".u-legend").offsetHeight : 0),
  });
  const fit = (chart) => {
    const { width, height } = sizeOf(chart);
    if (chart.plot.width !== width || chart.plot.height !== height) chart.plot.setSize({ width, height });
  };

  const draw = (chart) => {
    chart.plot?.destroy();
    chart.plot = null;
    const isTime = over.value !== "steps";
    const place = shown(isTime ? duration : String);
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--soft"), grid, ticks: grid, font: "12px system-ui, sans-serif" };
    const options = {
      ...sizeOf(chart),
      padding: [18, 22, 0, 0],
      cursor: { y: false, sync: { key: "curves" } },
      scales: {
        x: { time: false, range: (_, low, high) => (zoomed ? [low, high] : bounds) },
        y: log.checked ? { distr: 3 } : {},
      },
      axes: [
        { ...axis, size: 32, ...(isTime ? { incrs: INCREMENTS, values: (_, ticks) => ticks.map(duration) } : {}) },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(UNITS[chart.unit]) },
      ],
      series: [{ label: isTime ? "time" : "step", value: (_, x) => place(x) }, ...seriesOf(chart)],
      hooks: { drawClear: [drawGaps], draw: [drawMarks], setSelect: [() => (zoomed = true)] },
    };
    chart.plot = new uPlot(options, dataOf(chart), chart.canvas);
    const legend = chart.plot.root.querySelector(".u-legend");
    legend.createCaption().textContent = "Values at the cursor";
    for (const head of legend.querySelectorAll("th")) head.scope = "row";
    fit(chart);
    chart.plot.over.addEventListener("dblclick", () => (zoomed = false));
  };

  const redraw = () => {
    zoomed = false;
    bounds = whole();
    listMarks();
    for (const chart of charts.values()) draw(chart);
  };

  const move = (chart, event) => {
    if (event.key === "Escape") {
      zoomed = false;
      for (const { plot } of charts.values()) plot?.setData(plot.data);
      return;
    }
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!step) return;
    event.preventDefault();
    const xs = chart.plot.data[0];
    const x = xs[Math.min(Math.max((chart.plot.cursor.idx ?? -1) + step, 0), xs.length - 1)];
    for (const { plot } of charts.values()) plot?.setCursor({ left: plot.valToPos(x, "x"), top: 1 });
  };

  const observer = new ResizeObserver(() => {
    for (const chart of charts.values()) if (chart.plot && chart.canvas.clientWidth) fit(chart);
  });

  const chartOf = (title, names, unit, label) => {
    const canvas = make("div", {
      class: "canvas",
      tabindex: "0",
      role: "group",
      "aria-label": `${label}. Left and right move along the curve, Escape shows it whole.`,
    });
    const chart = { canvas, names, unit, plot: null };
    canvas.addEventListener("keydown", (event) => move(chart, event));
    observer.observe(canvas);
    charts.set(title, chart);
    return chart;
  };

  // Puts all of it into the section that is there now: a page that follows a run replaces it.
  const attach = () => {
    const section = document.getElementById("curves");
    if (!section || !runs.some((run) => run.curves.length)) return false;
    if (!panel.isConnected) section.querySelector("summary, h2").after(panel);
    const figures = section.querySelectorAll("figure[data-curves]");
    const known = new Set();
    for (const figure of figures) {
      const title = figure.dataset.chart;
      const names = JSON.parse(figure.dataset.curves);
      let chart = charts.get(title);
      if (!chart || chart.names.join("\n") !== names.join("\n")) {
        chart?.canvas.remove();
        const label = figure.querySelector("svg[role=img]").getAttribute("aria-label");
        chart = chartOf(title, names, figure.dataset.unit, label);
      }
      known.add(title);
      if (chart.canvas.parentElement !== figure) figure.append(chart.canvas);
      figure.classList.add("drawn");
    }
    if (!section.querySelector("figure.chart-box:not(.own)")) {
      made ||= make("div", { class: "charts" });
      if (!made.isConnected) (section.querySelector(":scope > details") || section).append(made);
      for (const name of new Set(runs.flatMap((run) => run.curves.map((found) => found.name)))) {
        known.add(name);
        if (charts.has(name)) continue;
        const chart = chartOf(name, [name], "number", name);
        const caption = make("figcaption", {}, printable(name));
        made.append(make("figure", { class: "chart-box own", "data-chart": name }, caption, chart.canvas));
      }
    }
    for (const [title, { plot, canvas }] of charts) {
      if (known.has(title)) continue;
      plot?.destroy();
      (canvas.closest(".own") || canvas).remove();
      charts.delete(title);
    }
    document.getElementById("content")?.setAttribute("data-charts", "");
    return true;
  };

  // Draws what is known of one run or of several, or what is new of it.
  const show = (answers) => {
    runs = answers;
    if (!attach()) return;
    bounds = whole();
    listMarks();
    for (const chart of charts.values()) {
      // One that a new section has brought is not drawn yet.
      if (!chart.plot) draw(chart);
      else {
        chart.plot.setData(dataOf(chart), !zoomed);
        if (zoomed) chart.plot.redraw();
      }
    }
  };

  for (const control of [over, log, smooth]) control.addEventListener("input", redraw);
  controls.addEventListener("submit", (event) => event.preventDefault());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // A page of one file brings them.
  const brought = document.getElementById("curves-data");
  if (brought) show([JSON.parse(brought.textContent)]);
  return { show, attach };
})();
